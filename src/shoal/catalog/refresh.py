"""Writes the catalog's files anew: `python -m shoal.catalog.refresh aws --region us-west-2 ...`

Needs the provider's SDK and credentials that may read prices; changes nothing but the file.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from shoal.catalog.instance_type import InstanceType
from shoal.catalog.price_table import CLOUDS, Cloud, load_price_table, to_text


def main(arguments: Sequence[str] | None = None) -> None:
    """Collect the figures of one cloud and write its file."""
    parser = argparse.ArgumentParser(prog="python -m shoal.catalog.refresh", description=__doc__)
    parser.add_argument("cloud", choices=CLOUDS)
    parser.add_argument("--region", action="append", help="default: the regions in the catalog")
    parser.add_argument("--project", default="", help="GCP: the project to ask as")
    parser.add_argument("--table", type=Path, help="read a collected CSV table, not the provider")
    parser.add_argument("--dated", help="default: this month")
    parser.add_argument("--to", type=Path, help="default: the file in the package")
    given = parser.parse_args(arguments)
    now = datetime.now(timezone.utc)
    listings = _collected(given.cloud, given.table, given.region, given.project, now)
    target = given.to or Path(__file__).parent / f"{given.cloud}.tsv"
    target.write_text(to_text(listings, given.dated or now.strftime("%Y-%m")), "utf-8")
    print(f"{len(listings)} instance types written to {target}")


def _collected(
    cloud: Cloud, table: Path | None, regions: Sequence[str] | None, project: str, now: datetime
) -> list[InstanceType]:
    if table:
        from shoal.catalog.sources import csv_table

        with table.open(encoding="utf-8", newline="") as lines:
            return csv_table.read(cloud, lines)
    regions = regions or load_price_table(cloud).regions
    if cloud == "aws":
        import boto3

        from shoal.catalog.sources import aws

        clients = aws.Clients(
            pricing=boto3.client("pricing", region_name=aws.PRICE_LIST_REGION),
            ec2=lambda region: boto3.client("ec2", region_name=region),
        )
        return aws.collect(clients, regions, now)
    from shoal.catalog.sources import gcp

    return gcp.collect(_authorized_get(), project, regions)


def _authorized_get() -> Any:
    import google.auth
    from google.auth.transport.requests import AuthorizedSession

    credentials, _ = google.auth.default(
        scopes=["https://www.googleapis.com/auth/cloud-platform.read-only"]
    )
    session = AuthorizedSession(credentials)  # type: ignore[no-untyped-call]

    def get(address: str, query: Mapping[str, str]) -> Mapping[str, Any]:
        answer = session.get(address, params=query, timeout=60)
        answer.raise_for_status()
        document: Mapping[str, Any] = answer.json()
        return document

    return get


if __name__ == "__main__":
    main()
