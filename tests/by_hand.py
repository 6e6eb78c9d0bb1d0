"""Manual optimisation that does what the automatic one does: for tests of who may do which."""

from fnll.local import Classifier


class ByHand(Classifier):
    """Zeroes gradients, goes backward and steps by itself."""

    def __init__(self, *args, **facts):
        super().__init__(*args, **facts)
        self.automatic_optimization = False

    def training_step(self, batch, index):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        optimizer.step()
