"""sentence-transformers by its older fit()."""

import sys

from sentence_transformers import InputExample, SentenceTransformer, losses
from torch.utils.data import DataLoader

rows = [InputExample(texts=[f"w{n % 60}", f"w{n % 60} w1"], label=0.5) for n in range(256)]
model = SentenceTransformer(f"{sys.argv[1]}/bert", device="cpu")
model.fit([(DataLoader(rows, batch_size=8, shuffle=True), losses.CosineSimilarityLoss(model))])
