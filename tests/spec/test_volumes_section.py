"""`shoal.volumes` and `shoal.mounts` of a cluster file."""

from __future__ import annotations

from shoal import spec
from shoal.spec.cluster_spec import MountSpec, VolumeSpec
from shoal.spec.hashes import launch_hash

from .conftest import loaded, problems

AWS = """\
provider: {type: aws, region: us-west-2}
available_node_types:
  head: {node_config: {InstanceType: m5.large}}
  gpu: {node_config: {InstanceType: g5.xlarge}, max_workers: 2}
head_node_type: head
"""
LOCAL = "provider: {type: local, head_ip: 10.0.0.1, worker_ips: [10.0.0.2]}\n"


def test_new_volumes_get_free_device_names() -> None:
    mapping = "[{DeviceName: /dev/sdg, Ebs: {VolumeSize: 8}}]"
    text = AWS.replace("m5.large}", f"m5.large, BlockDeviceMappings: {mapping}}}")
    volumes = loaded(
        text + "shoal: {volumes: {/a: {size: 10}, /b: {size: 20, type: io2, iops: 500, keep: true},"
        " /c: {device: /dev/nvme2n1, docker_data_root: true, node_types: [gpu]}}}\n"
    ).spec.shoal.volumes
    assert volumes == {
        "/a": VolumeSpec("/dev/sdf", 10),
        "/b": VolumeSpec("/dev/sdh", 20, type="io2", iops=500, keep=True),
        "/c": VolumeSpec("/dev/nvme2n1", docker_data_root=True, node_types=("gpu",)),
    }


def test_node_types_limits_where_volumes_and_mounts_apply() -> None:
    cluster = loaded(
        AWS + "shoal: {volumes: {/all: {size: 1}, /gpu: {size: 1, node_types: [gpu]}},"
        " mounts: {/efs: {efs: data}, 's3://models': {read_only: true}}}\n"
    ).spec
    assert cluster.mount_points_for("head") == ["/all", "/efs"]
    assert cluster.mount_points_for("gpu") == ["/all", "/gpu", "/efs"]
    assert cluster.mounts_for("gpu")["s3://models"] == MountSpec(s3="models", read_only=True)
    assert spec.from_json(spec.to_json(cluster)) == cluster


def test_only_new_volumes_change_the_launch_hash() -> None:
    def hash_with(volumes: str) -> str:
        return launch_hash(loaded(AWS + f"shoal: {{volumes: {volumes}}}\n").spec, "gpu")

    without_volumes = hash_with("{}")
    assert hash_with("{/a: {device: /dev/nvme1n1}}") == without_volumes
    assert hash_with("{/a: {size: 1, node_types: [head]}}") == without_volumes
    assert hash_with("{/a: {size: 1}}") not in (without_volumes, hash_with("{/a: {size: 2}}"))


def test_all_problems_are_reported() -> None:
    text = AWS + (
        "shoal:\n"
        "  volumes:\n"
        "    /var: {size: 1}\n"
        "    data: {size: 1}\n"
        "    /none: {}\n"
        "    /disk: {device: nvme1n1, iops: 3, filesystem: ext3}\n"
        "    /one: {device: /dev/sdf, docker_data_root: true, node_types: [gqu]}\n"
        "    /two: {device: /dev/sdf, docker_data_root: true}\n"
        "  mounts:\n"
        "    /both: {efs: a, s3: b}\n"
        "    /one: {s3: Not_A_Bucket}\n"
    )
    at = "cluster.yaml:{}  shoal.{}  "
    assert problems(text) == [
        at.format(8, "volumes./var") + "is a system directory; choose a path like /data",
        at.format(9, "volumes.data") + "must be a plain absolute path, like /data",
        at.format(10, "volumes./none")
        + "requires size, in GiB, for a new volume, or device, for an existing one",
        at.format(11, "volumes./disk.device") + "must be a device path like /dev/nvme1n1",
        at.format(11, "volumes./disk.filesystem") + "must be ext4 or xfs, not 'ext3'",
        at.format(11, "volumes./disk.iops") + "is for new volumes and requires size",
        at.format(12, "volumes./one.node_types")
        + "'gqu' is not in available_node_types; expected one of: gpu, head",
        at.format(13, "volumes./two.device") + "is already the device of /one",
        at.format(13, "volumes./two.docker_data_root")
        + "is already set for /one; only one volume can hold it",
        at.format(15, "mounts./both")
        + "requires either efs, the name or id of a file system, or s3, the name of a bucket",
        at.format(16, "mounts./one") + "is also a mount point in shoal.volumes",
        at.format(16, "mounts./one.s3") + "'Not_A_Bucket' is not a valid bucket name",
    ]


def test_local_clusters_only_mount_existing_devices() -> None:
    text = LOCAL + "shoal: {volumes: {/a: {size: 5}}, mounts: {/b: {efs: data}}}\n"
    assert [line.partition("  ")[2] for line in problems(text)] == [
        "shoal.mounts./b  is only supported on AWS",
        "shoal.volumes./a  requires device: new volumes can only be created on AWS",
        "shoal.volumes./a.size  is for new volumes, which can only be created on AWS",
    ]


def test_embedded_clusters_ignore_volumes_and_mounts() -> None:
    text = (
        "provider: {type: embedded}\nshoal: {volumes: {/a: {size: 5}}, mounts: {/b: {s3: x-y}}}\n"
    )
    result = loaded(text)
    assert result.spec.shoal.volumes == {}
    assert result.spec.shoal.mounts == {}
    assert [w.what for w in result.warnings] == [
        "shoal.volumes is ignored", "shoal.mounts is ignored",
    ]  # fmt: skip
