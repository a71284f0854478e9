import pytest

from runtime_wrapper import gpu_models
from runtime_wrapper.gpu_models import DATA_CENTRE, GEFORCE, GEFORCE_RTX, PROFESSIONAL, QUADRO, TITAN


@pytest.mark.parametrize(
    ("model", "arch", "brands"),
    [
        ("NVIDIA A100-SXM4-40GB", "8.0", DATA_CENTRE),
        ("NVIDIA A100 80GB PCIe", "8.0", DATA_CENTRE),
        ("NVIDIA A10G", "8.6", DATA_CENTRE),
        ("Tesla V100-SXM2-16GB", "7.0", DATA_CENTRE),
        ("Tesla T4", "7.5", DATA_CENTRE),
        ("NVIDIA H100 80GB HBM3", "9.0", DATA_CENTRE),
        ("NVIDIA H200 NVL", "9.0", DATA_CENTRE),
        ("NVIDIA L40S", "8.9", DATA_CENTRE),
        ("NVIDIA B200", "10.0", DATA_CENTRE),
        ("NVIDIA GH200 480GB", "9.0", DATA_CENTRE),
        ("NVIDIA RTX A6000", "8.6", PROFESSIONAL),
        ("NVIDIA RTX 6000 Ada Generation", "8.9", PROFESSIONAL),
        ("NVIDIA RTX 4000 SFF Ada Generation", "8.9", PROFESSIONAL),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "12.0", PROFESSIONAL),
        ("Quadro RTX 8000", "7.5", QUADRO),
        ("Quadro P4000", None, QUADRO),
        ("NVIDIA GeForce RTX 3090", "8.6", GEFORCE_RTX),
        ("NVIDIA GeForce RTX 4070 Laptop GPU", "8.9", GEFORCE_RTX),
        ("NVIDIA GeForce RTX 5090", "12.0", GEFORCE_RTX),
        ("GeForce GTX 1080 Ti", "6.1", GEFORCE),
        ("GeForce GT 710", None, GEFORCE_RTX),
        ("NVIDIA TITAN RTX", "7.5", TITAN),
        ("TITAN Xp", "6.1", TITAN),
        ("Tesla K40m", None, DATA_CENTRE),
        ("GPUs (P100/V100-SXM2 VM)", None, DATA_CENTRE),
        ("NVIDIA A10-12Q", None, None),
        ("GRID T4-8C", None, None),
        ("NVIDIA GPU", None, None),
        ("", None, None),
    ],
)
def test_a_model_name_tells_capability_and_brand(model: str, arch: str | None, brands: frozenset[str] | None) -> None:
    assert (gpu_models.arch(model), gpu_models.brands(model)) == (arch, brands)
