"""The index map: every element is followed by filling a tensor with its own indices and splitting it with torch."""

from __future__ import annotations

import pytest
import torch

from mha_core import AttentionConfig, Experiment, MaskSpec, MhaError, TextSource, run
from mha_core.experiment import give
from mha_core.lenses.index_map import head_of_element, landing, scrambled_weights, share_kept, token_of_row

BATCH, LENGTH, HEADS, HEAD_DIM = 2, 7, 3, 5
WIDTH = HEADS * HEAD_DIM
NUMBERED = torch.arange(BATCH * LENGTH * WIDTH).view(BATCH, LENGTH, WIDTH)
RIGHT = NUMBERED.view(BATCH, LENGTH, HEADS, HEAD_DIM).permute(0, 2, 1, 3)
TEMPTING = NUMBERED.view(BATCH, HEADS, LENGTH, HEAD_DIM)


def test_every_element_lands_where_torch_puts_it() -> None:
    for b in range(BATCH):
        for s in range(LENGTH):
            for e in range(WIDTH):
                found = landing((BATCH, LENGTH, WIDTH), HEADS, (b, s, e))
                assert found.offset == NUMBERED[b, s, e]
                assert RIGHT[found.right] == NUMBERED[b, s, e]
                assert TEMPTING[found.tempting] == NUMBERED[b, s, e]


def test_by_hand() -> None:
    """Three heads of two channels, four tokens: channel 5 of token 1 is offset 11; head 2 is right, head 1 tempting."""
    found = landing((1, 4, 6), 3, (0, 1, 5))
    assert (found.offset, found.right, found.tempting) == (11, (0, 2, 1, 1), (0, 1, 1, 1))


def test_heads_of_elements_and_tokens_of_rows() -> None:
    right, tempting = head_of_element(LENGTH, WIDTH, HEADS)
    for s in range(LENGTH):
        for e in range(WIDTH):
            found = landing((1, LENGTH, WIDTH), HEADS, (0, s, e))
            assert right[s, e] == found.right[1]
            assert tempting[s, e] == found.tempting[1]
    assert torch.equal(token_of_row(LENGTH, WIDTH, HEADS), TEMPTING[0, :, :, 0] // WIDTH)


def test_share_kept_counts_equal_places() -> None:
    assert share_kept(LENGTH, WIDTH, HEADS) == pytest.approx((RIGHT == TEMPTING).double().mean().item())
    assert share_kept(LENGTH, WIDTH, 1) == 1.0
    assert share_kept(1, WIDTH, HEADS) == 1.0


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(MhaError, match="num_heads is 4"):
        landing((1, LENGTH, WIDTH), 4, (0, 0, 0))
    with pytest.raises(MhaError, match="s is 7"):
        landing((1, LENGTH, WIDTH), HEADS, (0, 7, 0))


@pytest.mark.parametrize("positions", ["none", "sinusoidal"])
def test_scrambled_weights_are_those_of_the_wrong_layer(positions: str) -> None:
    config = AttentionConfig(42, 3)
    experiment = Experiment(
        TextSource("one two three four five six seven\neight nine"), config, MaskSpec(("padding",)), positions=positions
    )
    given = give(experiment)
    layer, x, length = given.layer, given.inputs.query, given.sizes.q_len
    with torch.no_grad():
        q, k = (projection(x).view(2, 3, length, 14) for projection in (layer.wq, layer.wk))  # the mistake
    hidden = torch.arange(length) >= torch.tensor([7, 2])[:, None, None, None]
    expected = (q @ k.mT / 14**0.5).masked_fill(hidden, -torch.inf).softmax(-1)
    right, scrambled = scrambled_weights(experiment)
    torch.testing.assert_close(scrambled, expected)
    torch.testing.assert_close(right, run(experiment).weights)
    assert (right - scrambled).abs().max() > 0.05


def test_one_head_cannot_be_scrambled() -> None:
    right, scrambled = scrambled_weights(Experiment(attention=AttentionConfig(26, 1)))
    torch.testing.assert_close(right, scrambled)
