"""Stores of images, and augmentations that are torchvision's, for whole batches."""

from __future__ import annotations

import fnll  # noqa: F401  (first, so that torchvision can be imported on a CPU-only PyTorch)

# isort: split
import pytest
import torch
import torchvision.transforms.functional as TF
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2_contingency, chisquare
from torchvision import transforms

from fnll.images import (
    HorizontalFlip,
    InMemory,
    RandomAffine,
    RandomCrop,
    RandomResizedCrop,
    Transform,
    affine,
    resized_crops,
)

ALPHA = 1e-6  # chance that a correct implementation fails one of the distribution tests


def images(n: int, channels: int = 3, height: int = 8, width: int = 8, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 256, (n, channels, height, width), generator=generator).to(torch.uint8)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class TestInMemory:
    def test_take_copies(self):
        store = InMemory(images(4))
        taken = store.take(torch.tensor([2, 0]))
        assert torch.equal(taken, store.pixels[[2, 0]])
        taken.zero_()
        assert store.pixels[2].any()

    def test_select_keeps_the_order_asked_for(self):
        store = InMemory(images(4))
        assert torch.equal(store.select(torch.tensor([3, 1])).pixels, store.pixels[[3, 1]])

    def test_digest_depends_on_content_and_shape_only(self):
        pixels = images(4)
        assert InMemory(pixels).digest == InMemory(pixels.clone()).digest
        assert InMemory(pixels).digest != InMemory(pixels.reshape(4, 3, 4, 16)).digest
        other = pixels.clone()
        other[3, 2, 7, 7] ^= 1
        assert InMemory(pixels).digest != InMemory(other).digest

    @pytest.mark.parametrize("wrong", [torch.zeros(2, 1, 4, 4), torch.zeros(2, 4, 4, dtype=torch.uint8)])
    def test_anything_but_a_batch_of_bytes_is_refused(self, wrong):
        with pytest.raises(TypeError, match="uint8"):
            InMemory(wrong)


class TestRandomCrop:
    @given(seed=st.integers(0, 2**31), padding=st.integers(0, 3), size=st.sampled_from([None, 5, 8]))
    @settings(max_examples=25, deadline=None)
    def test_every_image_is_torchvisions_crop_at_one_corner(self, seed, padding, size):
        pixels = images(6)
        cropped = RandomCrop(padding, size)(pixels, generator(seed))
        side = size or 8
        padded = TF.pad(pixels, padding)
        corners = [(i, j) for i in range(9 + 2 * padding - side) for j in range(9 + 2 * padding - side)]
        for k in range(6):
            assert any(torch.equal(cropped[k], TF.crop(padded[k], i, j, side, side)) for i, j in corners)

    def test_corners_are_uniform(self):
        """An image whose pixels are all different tells the corner from the value that lands top left."""
        pixels = torch.arange(1, 37, dtype=torch.uint8).view(1, 1, 6, 6).expand(20_000, 1, 6, 6)
        landed = RandomCrop(0, size=4)(pixels, generator(0))[:, 0, 0, 0].long()
        counts = torch.bincount(landed, minlength=37)
        possible = torch.tensor([1 + 6 * i + j for i in range(3) for j in range(3)])
        assert counts.sum() == counts[possible].sum() == 20_000
        assert chisquare(counts[possible]).pvalue > ALPHA

    def test_padded_corners_are_uniform(self):
        pixels = torch.zeros(40_000, 1, 5, 5, dtype=torch.uint8)
        pixels[:, 0, 2, 2] = 1  # the marked pixel moves by (padding - corner)
        at = RandomCrop(2)(pixels, generator(1)).flatten(1).long().argmax(1)
        assert chisquare(torch.bincount(at, minlength=25)).pvalue > ALPHA

    def test_draws_are_pinned(self):
        pixels = images(3)
        assert torch.equal(RandomCrop(4)(pixels, generator(7)), RandomCrop(4, 8)(pixels, generator(7)))
        g = generator(7)
        top, left = (torch.randint(0, 9, (3,), generator=g) for _ in range(2))
        expected = [TF.crop(TF.pad(pixels[k], 4), int(top[k]), int(left[k]), 8, 8) for k in range(3)]
        assert torch.equal(RandomCrop(4)(pixels, generator(7)), torch.stack(expected))


class TestHorizontalFlip:
    def test_flips_or_leaves(self):
        pixels = images(64)
        flipped = HorizontalFlip()(pixels, generator(0))
        for before, after in zip(pixels, flipped, strict=True):
            assert torch.equal(after, before) or torch.equal(after, TF.hflip(before))

    @pytest.mark.parametrize("p", [0.5, 0.2])
    def test_share_of_flips(self, p):
        pixels = torch.tensor([0, 1], dtype=torch.uint8).view(1, 1, 1, 2).expand(20_000, 1, 1, 2)
        flips = int(HorizontalFlip(p)(pixels, generator(3))[:, 0, 0, 0].sum())
        assert chisquare([flips, 20_000 - flips], [20_000 * p, 20_000 * (1 - p)]).pvalue > ALPHA


class TestRandomResizedCrop:
    @given(
        box=st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 9), st.integers(1, 9)),
        size=st.integers(1, 12),
    )
    @settings(max_examples=40, deadline=None)
    def test_resize_is_torchvisions(self, box, size):
        pixels = images(2, height=12, width=12)
        expected = TF.resized_crop(pixels, *box, size=[size, size], antialias=False)
        ours = resized_crops(pixels, torch.tensor([box, box]), size)
        assert (ours.int() - expected.int()).abs().max() <= 1  # the order of the two passes may round differently

    def test_each_image_has_its_own_box(self):
        pixels = images(2, height=9, width=9)
        ours = resized_crops(pixels, torch.tensor([[0, 0, 4, 4], [5, 5, 4, 4]]), 4)
        assert torch.equal(ours[0], pixels[0, :, :4, :4])
        assert torch.equal(ours[1], pixels[1, :, 5:, 5:])

    @pytest.mark.parametrize("shape", [(33, 33), (40, 20)])
    def test_boxes_are_distributed_as_torchvisions(self, shape):
        """Areas and corners of boxes come from the same distribution as torchvision's own draws; boxes always fit."""
        height, width = shape
        augmentation = RandomResizedCrop(32)
        boxes = augmentation.boxes(20_000, height, width, generator(0))
        top, left, h, w = boxes.unbind(1)
        assert (boxes >= 0).all()
        assert ((top + h <= height) & (left + w <= width) & (h > 0) & (w > 0)).all()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            image = torch.zeros(1, height, width)
            theirs = torch.tensor(
                [transforms.RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(4_000)]
            )
        for ours, reference in [(h * w, theirs[:, 2] * theirs[:, 3]), (top, theirs[:, 0]), (left, theirs[:, 1])]:
            edges = torch.quantile(reference.double(), torch.linspace(0.1, 0.9, 9, dtype=torch.float64)).unique()
            table = [
                torch.bincount(torch.bucketize(drawn.double(), edges), minlength=len(edges) + 1)
                for drawn in (ours, reference)
            ]
            assert chi2_contingency(torch.stack(table).numpy()[:, torch.stack(table).sum(0) > 0]).pvalue > ALPHA

    def test_a_box_that_never_fits_falls_back_to_the_centre(self):
        boxes = RandomResizedCrop(4, scale=(4.0, 5.0)).boxes(3, 10, 30, generator(0))
        assert boxes.tolist() == [[0, 8, 10, 13]] * 3  # height 10, width round(10 * 4/3)


class TestRandomAffine:
    @pytest.mark.parametrize(("angle", "dx", "dy"), [(0, 0, 0), (0, 2, -1), (10, 0, 0), (-7.3, 1, 2)])
    def test_is_torchvisions(self, angle, dx, dy):
        pixels = images(1, height=20, width=24)
        expected = TF.affine(pixels, angle, [dx, dy], 1.0, [0.0, 0.0])
        ours = affine(pixels, torch.tensor([float(angle)]), torch.tensor([dx]), torch.tensor([dy]))
        different = (ours != expected).float().mean()
        assert different <= (0.0 if angle == 0 else 0.005)  # pixels that lie on a rounding boundary

    def test_angles_and_shifts_are_uniform(self):
        angle, right, down = RandomAffine(degrees=10.0, translate=0.02).moves(20_000, 100, 50, generator(0))
        assert angle.abs().max() <= 10
        assert chisquare(torch.histc(angle, bins=8, min=-10, max=10)).pvalue > ALPHA
        # U(-1, 1) rounded: the ends get half of what the middle gets; likewise U(-2, 2)
        for shift, shares in [(right, [1, 2, 1]), (down, [1, 2, 2, 2, 1])]:
            counts = torch.bincount((shift + len(shares) // 2).long(), minlength=len(shares))
            assert chisquare(counts, torch.tensor(shares) * (20_000 / sum(shares))).pvalue > ALPHA

    def test_a_shift_brings_in_black(self):
        pixels = torch.full((200, 1, 50, 50), 255, dtype=torch.uint8)
        moved = RandomAffine(degrees=0.0, translate=0.02)(pixels, generator(0))
        assert set((moved == 0).flatten(1).sum(1).tolist()) == {0, 50, 99}  # nothing, one edge, two edges

    def test_long_batches_are_cut_without_changing_anything(self):
        pixels = images(130, height=6, width=6)
        augmentation = RandomAffine(30.0, 0.2)
        whole = affine(pixels, *augmentation.moves(130, 6, 6, generator(5)))
        assert torch.equal(augmentation(pixels, generator(5)), whole)


class TestTransform:
    def test_plain_is_totensor_and_normalize(self):
        pixels = images(2)
        transform = Transform((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        expected = TF.normalize(pixels.float() / 255, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
        assert torch.allclose(transform.plain(pixels), expected, atol=1e-6)

    def test_augmentations_apply_in_order(self):
        transform = Transform((0.0,) * 3, (1.0,) * 3, (RandomCrop(0, 4), HorizontalFlip(1.0)))
        pixels = images(2)
        g = generator(9)
        expected = RandomCrop(0, 4)(pixels, g).flip(3).float() / 255
        assert torch.allclose(transform.augmented(pixels, generator(9)), expected)

    def test_the_central_square_is_cut_where_images_are_larger(self):
        transform = Transform((0.0,) * 3, (1 / 255,) * 3, size=4)
        pixels = images(2, height=8, width=9)
        assert torch.equal(transform.plain(pixels), TF.center_crop(pixels, [4, 4]).float())
        assert transform.shape((3, 8, 9)) == (3, 4, 4)
        assert Transform((0.0,), (1.0,)).shape((1, 8, 9)) == (1, 8, 9)

    def test_smaller_images_are_enlarged_at_the_end_as_pillow_does(self):
        transform = Transform((0.0,) * 3, (1 / 255,) * 3, (HorizontalFlip(1.0),), resize=32)
        pixels = images(2, height=28, width=28)
        pillow = [TF.pil_to_tensor(TF.resize(TF.to_pil_image(image.flip(2)), [32, 32])) for image in pixels]
        assert (transform.augmented(pixels, generator(0)) - torch.stack(pillow)).abs().max() <= 1  # of 255: rounding
        assert transform.shape((3, 28, 28)) == (3, 32, 32)
