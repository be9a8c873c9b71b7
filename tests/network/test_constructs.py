"""The table of constructs: how many are accepted, that a refusal has a way out; masks of attention, and einsum of two branches."""

import pytest
import torch
import torch.nn.functional as F

from tests.soundness import test_backward_bounds, test_certify_operations
from tests.support.building_blocks import SHAPE, Function, head, numbered
from tests.support.constructs import ACCEPTED, LATER, REFUSED, attending
from tests.support.small_networks import CHECKER_REFUSES, NOT_READ, NOT_WRITTEN, SUPPORTED, build
from tiltproof.errors import InputError, UnsupportedOperation
from tiltproof.network import read_network


def read(model):
    return read_network(model.eval(), SHAPE, torch.rand(1, *SHAPE))


USED = [each if isinstance(each, str) else name for rows in ACCEPTED.values() for name, each in rows.items()]


def test_at_least_105_of_118_are_accepted():
    assert len(set(USED)) == len(USED) >= 105
    assert len(USED) + len(REFUSED) == 118


def test_each_goes_through_all_tests():
    """Forward, float32 semantics, the checker and ONNX files iterate over `SUPPORTED`, but for what these sets name."""
    tables = (SUPPORTED, test_backward_bounds.NAMES, test_certify_operations.NAMES)
    assert all(set(USED) <= set(table) for table in tables)
    assert not set(USED) & (CHECKER_REFUSES | NOT_WRITTEN | NOT_READ)


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_has_a_way_out(name):
    make, why = REFUSED[name]
    assert why
    with pytest.raises(UnsupportedOperation, match="no bound rule") as refusal:
        read(build(make, 0))
    assert "What to do" in str(refusal.value)
    assert all(use.operation and use.do for use in refusal.value.refusals)


def masked(mask):
    return numbered(lambda x: F.scaled_dot_product_attention(x, x, x, mask), 60)


@pytest.mark.parametrize(
    "mask",
    [
        torch.ones(6, 6).tril(-1).bool(),
        torch.full((6, 6), -torch.inf),
        torch.full((6, 6), torch.inf),
        torch.full((6, 6), torch.nan),
    ],
    ids=["nothing to attend to", "all infinite", "infinite", "no number"],
)
def test_masks_that_give_no_numbers_are_refused(mask):
    with pytest.raises(InputError, match="mask|does not compute"):
        read(masked(mask))


def test_a_mask_for_each_image_is_refused():
    model = Function(
        lambda m, x: m.head(F.scaled_dot_product_attention(x, x, x, torch.ones(len(x), 2, 6, 6)).flatten(1)),
        head=head(60),
    )
    with pytest.raises(InputError, match="may differ by image"):
        read(model)


def test_a_mask_of_minus_infinity_for_weights_that_are_kept_names_the_way_out():
    model = Function(
        lambda m, x: m.inner(x),
        inner=attending(),
    )
    model.inner.function = lambda m, x: m.head(
        (lambda y: m.a(y, y, y, attn_mask=LATER)[0])(x.flatten(1, 2).transpose(1, 2)[..., :4]).flatten(1)
    )
    with pytest.raises(InputError, match="need_weights=False"):
        read(model)


@pytest.mark.parametrize("equation", ["nchw,ndhw->ncd", "bhid,bhjd->bihj", "nchw,nchw->nc", "nchw,ndhw->nhcwd"])
def test_an_einsum_of_branches_is_a_product_of_matrices(equation):
    model = Function(lambda m, x: m.head(torch.einsum(equation, x, torch.relu(x - 0.5)).flatten(1)), head=head(1))
    features = model.function.__get__(Function(None, head=torch.nn.Identity()))(torch.rand(1, *SHAPE)).shape[1]
    model.head = head(features)
    kinds = [operation.kind for operation in read(model).operations]
    assert kinds.count("matmul") == 1


@pytest.mark.parametrize("equation", ["nchw,nchw->chw", "nchw,nchd->nh", "nchw,nchw->ncc"])
def test_other_einsums_are_refused(equation):
    model = Function(lambda _, x: torch.einsum(equation, x, x).flatten(1))
    with pytest.raises(InputError):
        read(model)


def test_masks_of_numbers_say_the_same_as_truth_values():
    """The bounds, too; and causal attention is one of these."""
    truth = torch.ones(6, 6).tril().bool()
    infinite = torch.zeros(6, 6).masked_fill(~truth, -torch.inf)
    torch.manual_seed(0)
    models = [
        masked(truth),
        masked(infinite),
        numbered(lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), 60),
    ]
    for model in models[1:]:
        model.load_state_dict(models[0].state_dict())
    x = torch.rand(3, *SHAPE)
    outputs = [model.eval()(x) for model in models]
    assert all(torch.allclose(outputs[0], each) for each in outputs)
    assert len({tuple(operation.kind for operation in read(model).operations) for model in models}) == 1
