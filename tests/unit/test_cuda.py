import pytest
from drivers.samples import nvlink_host

from runtime_wrapper.cuda import visible_devices
from runtime_wrapper.errors import CudaVisibleDevicesError

HOST = nvlink_host()
GRANT = (HOST.gpus[5], HOST.gpus[2])  # in the order asked for; inside, GPU 2 is number 0


@pytest.mark.parametrize(
    ("wanted", "given"),
    [
        (None, "0,1"),
        ("", ""),
        (" ", " "),
        ("-1", "-1"),
        ("-1,0", "-1,0"),
        ("NoDevFiles", "NoDevFiles"),
        ("0", "0"),
        ("1,0", "1,0"),
        ("2", "0"),
        ("5", "1"),
        ("2,5", "0,1"),
        ("5, 2", "1,0"),
        (HOST.gpus[5].uuid, HOST.gpus[5].uuid),
        (f"{HOST.gpus[2].uuid},{HOST.gpus[5].uuid}", f"{HOST.gpus[2].uuid},{HOST.gpus[5].uuid}"),
        (str(HOST.gpus[5].uuid)[:14], str(HOST.gpus[5].uuid)[:14]),
    ],
)
def test_the_users_choice_is_kept_or_translated(wanted: str | None, given: str) -> None:
    assert visible_devices(wanted, GRANT) == given


@pytest.mark.parametrize(
    "wanted", ["7", "0,3", "5,0", "x", "0,x", "GPU-", HOST.gpus[0].uuid, "MIG-1234", "1" * 5000, "٣", "0,-1,5"]
)
def test_a_choice_outside_the_grant_is_refused(wanted: str) -> None:
    with pytest.raises(CudaVisibleDevicesError, match="process.env") as caught:
        visible_devices(wanted, GRANT)
    assert len(str(caught.value)) < 500


def test_without_gpus_the_variable_stays_as_it_is() -> None:
    assert visible_devices("3", ()) == "3"
