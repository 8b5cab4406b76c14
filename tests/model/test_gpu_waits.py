"""A training step on a GPU, pretended or real: the CPU's numbers, and nothing waits for it."""

import contextlib
import copy
from itertools import product

import pytest
import torch
from pretend_gpu import META, OnGPU, PretendGPU

from data.batching import join, pad, separate
from lab.evaluation import measure_masked
from model import POSITIONS, Config, Decoder, Encoder, LanguageModel
from nets import device
from nets.device import send_all, send_mask
from nets.encoder_decoder import EncoderDecoder
from nets.thread_reader import ThreadReader
from nets.two_languages import make_encoder
from train_mlm import Flags

CPU = torch.device("cpu")
TEXTS = [torch.randint(5, 30, (n,), generator=torch.Generator().manual_seed(n)) for n in (7, 5, 4)]


class Pretended(PretendGPU):
    device = META

    def copy(self, model):
        """A copy of a model on this GPU."""
        model = copy.deepcopy(model)
        for module in model.modules():
            for name, weight in list(module.named_parameters(recurse=False)):
                copied = OnGPU(weight.detach().clone())
                setattr(module, name, torch.nn.Parameter(copied, weight.requires_grad))
            for name, table in list(module.named_buffers(recurse=False)):
                module.register_buffer(name, OnGPU(table), name in module.state_dict())
        return model

    def read(self, tensor):
        return tensor.here

    @contextlib.contextmanager
    def nothing_waits(self):
        self.waits.clear()
        yield
        assert not self.waits, self.waits


class Real(contextlib.nullcontext):
    device = torch.device("cuda")

    def __init__(self):
        super().__init__(self)

    def copy(self, model):
        return copy.deepcopy(model).cuda()

    def read(self, tensor):
        return tensor.cpu()

    @contextlib.contextmanager
    def nothing_waits(self):
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.fixture(autouse=True)
def pretended(monkeypatch):
    monkeypatch.setattr(device, "GPUS", ("cuda", "meta"))


@pytest.fixture(name="gpu", params=[Pretended, pytest.param(Real, marks=pytest.mark.gpu)])
def a_gpu(request):
    with request.param() as found:
        yield found


def take_step(model, optimizer, inputs, mask, targets, place):
    """The loss and the gradients of a training step as the scripts take it."""
    read = send_all(inputs, place) | {"mask": send_mask(mask, place)}
    optimizer.zero_grad()
    loss = model.loss(targets=targets, **read) / 5
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def compare(gpu, model, inputs, mask, targets):
    """Take the same steps on both devices: equal numbers, and no wait but for tables at first."""
    other = gpu.copy(model)
    # A large eps: Adam would turn the rounding of tiny gradients into whole steps
    optimizers = [torch.optim.AdamW(m.parameters(), 0.01, eps=1e-4) for m in (model, other)]
    for step in range(3):
        here = take_step(model, optimizers[0], inputs, mask, targets, CPU)
        with gpu.nothing_waits() if step else contextlib.nullcontext():
            there = take_step(other, optimizers[1], inputs, mask, targets, gpu.device)
        assert len(here) == len(there)
        for mine, expected in zip(there, here):
            torch.testing.assert_close(gpu.read(mine), expected, atol=1e-5, rtol=1e-4)


def masked(idx, mask):
    return torch.where(mask & (torch.arange(idx.size(1)) % 2 == 1), idx, -100)


def config(**more):
    return Config(**dict(vocab_size=30, block_size=8, n_layer=2, n_embd=16, n_ffn=20) | more)


@pytest.mark.parametrize("norm_first, full", [(True, False), (False, True)])
@pytest.mark.parametrize(
    "pos, head, body",
    [*product(POSITIONS, ("roberta",), (Encoder, Decoder)), ("alibi", "clap", Encoder)],
)
def test_steps_of_encoders_and_decoders(pos, head, body, norm_first, full, gpu):
    idx, mask = pad(TEXTS[:1] * 2 if full else TEXTS)
    unit = dict(unit_embd=head == "clap", zero_mask=head == "clap")
    model = LanguageModel(body(config(pos=pos, head=head, norm_first=norm_first, **unit)))
    compare(gpu, model, {"idx": idx}, mask, masked(idx, mask))


@pytest.mark.parametrize("pos, batch", [*product(POSITIONS, (join, separate))])
def test_steps_of_two_languages(pos, batch, gpu):
    idx, mask, where = batch(TEXTS, TEXTS[::-1])
    model = LanguageModel(make_encoder(config(pos=pos, n_language=2)))
    compare(gpu, model, {"idx": idx, **where}, mask, masked(idx, mask))


def test_steps_of_an_encoder_and_a_decoder(gpu):
    (idx, mask), (source, source_mask) = pad(TEXTS), pad(TEXTS[::-1])
    inputs = {"idx": idx, "source": source, "source_mask": source_mask}
    model = LanguageModel(EncoderDecoder(config()))
    compare(gpu, model, inputs, torch.ones_like(mask), masked(idx, mask))


def test_steps_of_a_reader_of_threads(gpu):
    (idx, mask), (texts, texts_mask) = pad(TEXTS), pad(TEXTS[:2])
    ancestors = torch.tensor([[0, 1], [1, 0], [0, 0]])
    real = torch.tensor([[True, True], [True, True], [True, False]])
    above = dict(texts=texts, texts_mask=texts_mask, ancestors=ancestors, ancestors_mask=real)
    model = LanguageModel(ThreadReader(config(), 2, "learned"))
    compare(gpu, model, {"idx": idx, **above}, mask, masked(idx, mask))


@pytest.mark.parametrize("head", ["linear", "roberta"])
def test_steps_of_a_model_whose_matrices_are_frozen(head, gpu):
    (idx, mask), model = pad(TEXTS), LanguageModel(Encoder(config(pos="alibi", head=head)))
    for weight in model.parameters():
        weight.requires_grad_(weight.dim() == 1)
    compare(gpu, model, {"idx": idx}, mask, masked(idx, mask))


def test_an_evaluation_waits_at_its_end_only():
    model, flags = LanguageModel(Encoder(config(pos="alibi"))), Flags(dtype="float32")
    batches = [(*pad(TEXTS[i:]), masked(*pad(TEXTS[i:])), {}) for i in range(3)]
    expected = measure_masked(model, batches, CPU, flags)
    with Pretended() as gpu:
        other = gpu.copy(model)
        measure_masked(other, batches, META, flags)  # tables are made
        gpu.waits.clear()
        assert measure_masked(other, batches, META, flags) == pytest.approx(expected, rel=1e-5)
    lines = {where.partition(" ")[0] for _, where in gpu.waits}
    assert len(lines) == 1, lines


def test_the_pretended_gpu_notices_waits_and_mixed_devices():
    with PretendGPU() as gpu:
        x = torch.ones(3, device=META)
        x.sum().item()
        assert [what for what, _ in gpu.waits] == ["aten._local_scalar_dense"]
        x[x > 0], torch.ones(3).to(META), x.cpu()
        assert len(gpu.waits) >= 4
        with pytest.raises(RuntimeError, match="mixed"):
            x + torch.ones(3)
