"""Regenerates a price table: `python -m shoal.catalog.refresh aws --region us-west-2 ...`

Needs the cloud's SDK and credentials that can read prices. Writes only the table's file.
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
    """Collect the prices of one cloud and write its table."""
    parser = argparse.ArgumentParser(
        prog="python -m shoal.catalog.refresh", description="Regenerate a price table."
    )
    parser.add_argument("cloud", choices=CLOUDS, help="The cloud whose table is regenerated.")
    parser.add_argument(
        "--region",
        action="append",
        help="A region to include; repeatable. Default: the regions of the table.",
    )
    parser.add_argument("--project", default="", help="The GCP project for API requests.")
    parser.add_argument(
        "--table", type=Path, help="Read prices from this CSV file instead of the cloud's API."
    )
    parser.add_argument("--dated", help="The month of the prices, as YYYY-MM. Default: this month.")
    parser.add_argument("--to", type=Path, help="The output file. Default: the shipped table.")
    options = parser.parse_args(arguments)
    now = datetime.now(timezone.utc)
    instance_types = _collect(options.cloud, options.table, options.region, options.project, now)
    target = options.to or Path(__file__).parent / f"{options.cloud}.tsv"
    target.write_text(to_text(instance_types, options.dated or now.strftime("%Y-%m")), "utf-8")
    print(f"wrote {len(instance_types)} instance types to {target}")


def _collect(
    cloud: Cloud, table: Path | None, regions: Sequence[str] | None, project: str, now: datetime
) -> list[InstanceType]:
    if table:
        from shoal.catalog.sources import csv_table

        with table.open(encoding="utf-8", newline="") as file:
            return csv_table.read(cloud, file)
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

    def get(url: str, query: Mapping[str, str]) -> Mapping[str, Any]:
        response = session.get(url, params=query, timeout=60)
        response.raise_for_status()
        document: Mapping[str, Any] = response.json()
        return document

    return get


if __name__ == "__main__":
    main()
