"""A worker proves what it was sent, or refuses."""

import dataclasses
import pickle

import pytest
import torch

from tests.support.digits import TRANSFORM, problem
from tiltproof import Execution, InputError, certify
from tiltproof.distributed.worker import Package, Worker, versions
from tiltproof.verify.batch import Job
from tiltproof.verify.inputs import check_inputs, proof_on
from tiltproof.verify.options import Settings


@pytest.fixture
def sent():
    threads = torch.get_num_threads()
    inputs = check_inputs(*problem(), TRANSFORM)
    job = Job(Settings(), first=0)
    with proof_on(inputs.images):
        package = Package.of(inputs, job, pairs=2)
    yield inputs, job, package
    torch.set_num_threads(threads)


def prepared(package):
    member = Worker()
    assert member.prepare(pickle.dumps(package), "cpu", versions())[0] == "cpu"
    return member


def test_a_batch_is_that_of_a_single_process(sent):
    inputs, job, package = sent
    rows = slice(4, 6)
    part, grid = inputs.part(rows), (4, 1)
    results, found = prepared(package).batch(job.part(rows), part.images, part.labels, grid, scouting=False)
    assert found == grid
    model, images, labels = problem()
    alone = certify(model, images[rows], labels[rows], TRANSFORM, execution=Execution(batch_size=2), first=4)
    assert [each.verdict for each in results] == alone.verdicts
    assert [each.image for each in results] == [4, 5]
    assert {each.grid for each in results} <= {grid, None}


def test_scouting_finds_the_grid_of_the_batch(sent):
    inputs, job, package = sent
    member = prepared(package)
    what = job, inputs.images[:4], inputs.labels[:4], None
    results, found = member.batch(*what, scouting=True)
    assert results is None
    assert found is not None
    assert found == member.batch(*what, scouting=False)[1]


def test_a_device_of_another_kind_takes_what_its_memory_holds(sent):
    inputs, job, package = sent
    assert prepared(package).pairs.size == 2
    assert prepared(dataclasses.replace(package, planned_for="cuda")).pairs.size == job.pairs(inputs)
    asked = dataclasses.replace(job, batch_size=5)
    assert prepared(dataclasses.replace(package, planned_for="cuda", job=asked)).pairs.size == 5


def test_another_network_is_refused(sent):
    package = dataclasses.replace(sent[2], graph="0" * 64)
    with pytest.raises(InputError, match="another network"):
        prepared(package)
    changed = dataclasses.replace(sent[2], model=problem()[0])
    with torch.no_grad():
        weight = changed.model[0].weight.view(-1)
        weight[0] = torch.nextafter(weight[0], torch.tensor(9.0))
    with pytest.raises(InputError, match="another network"):
        prepared(changed)


def test_what_cannot_be_unpacked_is_refused():
    with pytest.raises(InputError, match="cannot be unpacked there.*not_there"):
        Worker().prepare(b"cnot_there\nnetwork\n.", "cpu", versions())
