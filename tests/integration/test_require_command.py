"""`gpulatch require`: an expression tried by hand."""

import pytest
from drivers.host import Host

pytestmark = pytest.mark.needs("sandbox", "root", "build", "runc")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["cuda>=12.4"], 0, "met"),
        (["cuda>=13.0"], 1, "driver 550.54.15, which runs CUDA up to 12.4"),
        (["brand=tesla,arch>=8.0"], 0, "met"),
        (["cuda >=12"], 2, "no condition"),
        (["cuda>=13.0", "--driver", "580.65.06"], 0, "met"),
        (["cuda>=12.0", "--cuda", "11.8"], 1, "CUDA up to 11.8"),
        (["brand=tesla", "--brand", "geforce"], 1, "brand geforce"),
        (["arch>=9.0", "--arch", "8.6"], 1, "arch 8.6"),
        (["arch>=9.0", "--driver", "550.54.15"], 0, "could not be checked"),
        (["cuda>=12", "--driver", "new"], 2, "--driver"),
        ([], 2, "EXPR"),
    ],
)
def test_an_expression_can_be_tried_by_hand(host: Host, arguments: list[str], code: int, said: str) -> None:
    done = host.gpulatch("require", *arguments)
    assert done.returncode == code, done.stderr
    output = done.stdout + done.stderr
    assert said in output
    if code != 2:
        assert len(output.splitlines()) == 1


def test_without_a_driver_an_expression_is_refused_by_hand(host: Host) -> None:
    host.run(["umount", "-l", "/proc/driver"])
    done = host.gpulatch("require", "cuda>=12.0")
    assert (done.returncode, "GL-3001" in done.stderr) == (1, True)
