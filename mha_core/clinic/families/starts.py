"""Mistakes in initial values."""

from mha_core.clinic.record import Mistake

STARTS = (
    Mistake(
        name="two_zero_layers",
        title="Zeros in two matrices in a row",
        kind="init",
        symptoms=("trains_poorly",),
        steps=("init",),
        wrong="wv = torch.zeros_like(wv)\nwo = torch.zeros_like(wo)\nbv = None if bv is None else torch.zeros_like(bv)",
        right="wo = torch.zeros_like(wo)",
        check="gradients",
        trains=True,
        notice="Every gradient is exactly 0, and still is after some steps.",
        fix="Zeros in the last matrix alone are a known trick.",
        lesson="“Zeros make gradients vanish” is half true: one zero layer wakes up after a step, two in a row never.",
    ),
    Mistake(
        name="zero_queries_and_keys",
        title="Zeros in q and in k",
        kind="init",
        symptoms=("trains_poorly", "nothing"),
        steps=("init",),
        wrong="wq, wk = torch.zeros_like(wq), torch.zeros_like(wk)\n"
        "bq = None if bq is None else torch.zeros_like(bq)\n"
        "bk = None if bk is None else torch.zeros_like(bk)",
        right="wq = torch.zeros_like(wq)\nbq = None if bq is None else torch.zeros_like(bq)",
        needs=("tokens", "wide_heads"),
        check="gradients",
        trains=True,
        notice="Every map is uniform and stays so: q and k have gradient 0, v and out learn.",
        fix="Zero one of the two at most.",
        lesson="The gradient of q is made of k and the other way round: zero twice is zero for ever.",
    ),
    Mistake(
        name="equal_heads",
        title="All weights the same constant",
        kind="init",
        symptoms=("trains_poorly",),
        steps=("init",),
        wrong="wq, wk, wv, wo = (torch.full_like(w, 0.02) for w in (wq, wk, wv, wo))\nbq = bk = bv = bo = None",
        right="wq, wk, wv, wo = (torch.randn(w.shape, generator=torch.Generator().manual_seed(0)).to(w.dtype) * 0.02\n"
        "                  for w in (wq, wk, wv, wo))\n"
        "bq = bk = bv = bo = None",
        needs=("heads", "tokens"),
        notice="All heads show the same map, and always will: their gradients are equal.",
        fix="Draw at random, from a seed.",
        lesson="Gradients keep a symmetry that the start has. H equal heads are one head.",
    ),
    Mistake(
        name="xavier_on_packed",
        title="Xavier on the packed q, k, v matrix",
        kind="init",
        symptoms=("nothing", "trains_poorly"),
        steps=("init",),
        wrong="torch.manual_seed(0)\n"
        "packed = torch.empty(wq.size(0) + wk.size(0) + wv.size(0), E)\n"
        "torch.nn.init.xavier_uniform_(packed)\n"
        "wq, wk, wv = packed.to(wq.dtype).split([len(wq), len(wk), len(wv)])\n"
        "spread = wq.float().std(correction=0)",
        right="torch.manual_seed(0)\n"
        "wq, wk, wv = (torch.nn.init.xavier_uniform_(torch.empty(len(w), E)).to(w.dtype) for w in (wq, wk, wv))\n"
        "spread = wq.float().std(correction=0)",
        needs=("square_inputs",),
        reports=(("spread", "spread (std) of Wq", ""),),
        notice="Compare the spread of each matrix with what its own sizes ask for.",
        fix="Fill each block by itself, or use gain √2.",
        lesson="Fan-out is read off the shape: three matrices in one look like one that is three times as wide.",
    ),
)
