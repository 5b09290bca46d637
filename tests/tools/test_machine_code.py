"""What the tests read from machine code."""

from __future__ import annotations

import pytest

from tests.tools.machine_code import innermost_loops_with, of_local_memory

TILES = """
.L_x_1:
        /*0010*/                   LDL.LU R16, [R1] ;
        /*0020*/                   STL [R1], R16 ;
.L_x_2:
        /*0030*/                   HGMMA.64x64x16.F32 R24, gdesc[UR4], R24 ;
        /*0040*/              @!P0 BRA `(.L_x_3) ;
        /*0050*/                   {inside} ;
.L_x_3:
        /*0058*/              @!P3 BRA `(.L_x_6) ;
.L_x_5:
        /*0060*/               @P0 BRA `(.L_x_2) ;
        /*0070*/                   HGMMA.64x64x16.F32 R24, gdesc[UR4], R24 ;
        /*0080*/                   LDL R16, [R1+0x4] ;
        /*0090*/               @P1 BRA `(.L_x_1) ;
.L_x_4:
        /*00a0*/                   FADD R1, R2, R3 ;
        /*00b0*/               @P0 BRA `(.L_x_4) ;
        /*00c0*/                   EXIT ;
.L_x_6:
        /*00d0*/              @!P3 BRA `(.L_x_6) ;
        /*00e0*/                   BRA `(.L_x_5) ;
"""


@pytest.mark.parametrize(
    ("inside", "found"),
    [("FADD R1, R2, R3", []), ("@P2 LDL R3, [R1+0x8]", ["LDL R3, [R1+0x8]"])],
)
def test_the_innermost_loop_alone_counts(inside: str, found: list[str]) -> None:
    (loop,) = innermost_loops_with("HGMMA", TILES.format(inside=inside))
    assert of_local_memory(loop) == found
    assert len(loop) == 7


def test_an_operation_that_is_in_no_loop_is_in_none() -> None:
    assert innermost_loops_with("MUFU", TILES) == []
