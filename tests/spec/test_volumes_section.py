"""`shoal.volumes` and `shoal.mounts` of a cluster file."""

from __future__ import annotations

from shoal import spec
from shoal.spec.cluster_spec import MountSpec, VolumeSpec
from shoal.spec.hashes import launch_hash

from .conftest import loaded, mistakes

AWS = """\
provider: {type: aws, region: us-west-2}
available_node_types:
  head: {node_config: {InstanceType: m5.large}}
  gpu: {node_config: {InstanceType: g5.xlarge}, max_workers: 2}
head_node_type: head
"""
LOCAL = "provider: {type: local, head_ip: 10.0.0.1, worker_ips: [10.0.0.2]}\n"


def test_new_volumes_get_the_devices_that_are_free_and_others_keep_theirs() -> None:
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


def test_a_node_has_the_volumes_of_its_type() -> None:
    read = loaded(
        AWS + "shoal: {volumes: {/all: {size: 1}, /gpu: {size: 1, node_types: [gpu]}},"
        " mounts: {/efs: {efs: data}, 's3://models': {read_only: true}}}\n"
    ).spec
    assert read.places_for("head") == ["/all", "/efs"]
    assert read.places_for("gpu") == ["/all", "/gpu", "/efs"]
    assert read.mounts_for("gpu")["s3://models"] == MountSpec(s3="models", read_only=True)
    assert spec.from_json(spec.to_json(read)) == read


def test_only_what_is_launched_with_a_machine_makes_it_another_machine() -> None:
    def hashed(volumes: str) -> str:
        return launch_hash(loaded(AWS + f"shoal: {{volumes: {volumes}}}\n").spec, "gpu")

    plain = hashed("{}")
    assert hashed("{/a: {device: /dev/nvme1n1}}") == plain
    assert hashed("{/a: {size: 1, node_types: [head]}}") == plain
    assert hashed("{/a: {size: 1}}") not in (plain, hashed("{/a: {size: 2}}"))


def test_every_mistake_is_told() -> None:
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
    assert mistakes(text) == [
        at.format(8, "volumes./var") + "is the machine's own; choose a place like /data",
        at.format(9, "volumes.data") + "must be a plain absolute path, like /data",
        at.format(10, "volumes./none")
        + "needs size, in GiB, for a new volume; or device, for one there is",
        at.format(11, "volumes./disk.device") + "must be a device, like /dev/nvme1n1",
        at.format(11, "volumes./disk.filesystem") + "must be ext4 or xfs, not 'ext3'",
        at.format(11, "volumes./disk.iops") + "is for new volumes: it needs size beside it",
        at.format(12, "volumes./one.node_types")
        + "'gqu' is not among available_node_types; known here: gpu, head",
        at.format(13, "volumes./two.device") + "is the device of /one as well",
        at.format(13, "volumes./two.docker_data_root") + "is true of /one as well",
        at.format(15, "mounts./both")
        + "needs either efs, a file system's name or id, or s3, a bucket's name",
        at.format(16, "mounts./one") + "is in shoal.volumes as well",
        at.format(16, "mounts./one.s3") + "'Not_A_Bucket' is no name of a bucket",
    ]


def test_machines_of_ones_own_have_disks_and_get_none() -> None:
    text = LOCAL + "shoal: {volumes: {/a: {size: 5}}, mounts: {/b: {efs: data}}}\n"
    assert [line.partition("  ")[2] for line in mistakes(text)] == [
        "shoal.mounts./b  is for clusters on AWS",
        "shoal.volumes./a  needs device: disks can be made on AWS only",
        "shoal.volumes./a.size  is for new volumes, which can be made on AWS only",
    ]


def test_an_embedded_cluster_does_without() -> None:
    text = (
        "provider: {type: embedded}\nshoal: {volumes: {/a: {size: 5}}, mounts: {/b: {s3: x-y}}}\n"
    )
    found = loaded(text)
    assert found.spec.shoal.volumes == {}
    assert found.spec.shoal.mounts == {}
    assert [w.what for w in found.warnings] == [
        "shoal.volumes is ignored", "shoal.mounts is ignored",
    ]  # fmt: skip
