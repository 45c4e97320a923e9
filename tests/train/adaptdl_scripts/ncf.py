"""AdaptDL's neural collaborative filtering example, on made-up ratings."""

import argparse
import os

import adaptdl
import adaptdl.torch as adl
import numpy as np
import torch
import torch.utils.data as data
from torch import nn, optim
from torch.utils.tensorboard import SummaryWriter

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.001, help="learning rate")
parser.add_argument("--batch_size", type=int, default=32, help="batch size for training")
parser.add_argument("--epochs", type=int, default=20, help="training epochs")
parser.add_argument("--top_k", type=int, default=10, help="compute metrics@top_k")
parser.add_argument("--factor_num", type=int, default=8, help="predictive factors")
parser.add_argument("--num_ng", type=int, default=4, help="negative samples for training")
parser.add_argument("--test_num_ng", type=int, default=19, help="negatives for testing")
parser.add_argument("--autoscale-bsz", action="store_true", help="autoscale batchsize")
args = parser.parse_args()

adl.init_process_group("nccl" if torch.cuda.is_available() else "gloo")

USERS, ITEMS = 20, 100


class NCFData(data.Dataset):
    def __init__(self, features, num_ng=0, is_training=None):
        self.features_ps = features
        self.num_ng = num_ng
        self.is_training = is_training
        self.labels_fill = [0 for _ in range(len(features))]
        self.features_fill = features

    def ng_sample(self):
        assert self.is_training, "no need to sampling when testing"
        positive = set(map(tuple, self.features_ps))
        negatives = []
        for user, _ in self.features_ps:
            for _ in range(self.num_ng):
                item = np.random.randint(ITEMS)
                while (user, item) in positive:
                    item = np.random.randint(ITEMS)
                negatives.append([user, item])
        self.features_fill = self.features_ps + negatives
        self.labels_fill = [1] * len(self.features_ps) + [0] * len(negatives)

    def __len__(self):
        return (
            (self.num_ng + 1) * len(self.features_ps) if self.is_training else len(self.features_ps)
        )

    def __getitem__(self, index):
        user, item = self.features_fill[index]
        return user, item, float(self.labels_fill[index])


class NCF(nn.Module):
    def __init__(self, user_num, item_num, factor_num):
        super().__init__()
        self.embed_user = nn.Embedding(user_num, factor_num)
        self.embed_item = nn.Embedding(item_num, factor_num)
        self.predict_layer = nn.Sequential(
            nn.Linear(2 * factor_num, factor_num), nn.ReLU(), nn.Linear(factor_num, 1)
        )

    def forward(self, user, item):
        both = torch.cat((self.embed_user(user), self.embed_item(item)), -1)
        return self.predict_layer(both).view(-1)


def hit_rate(model, test_loader, top_k):
    hits = []
    for user, item, _ in test_loader:
        predictions = model(user, item)
        _, indices = torch.topk(predictions, top_k)
        recommends = torch.take(item, indices).tolist()
        hits.append(item[0].item() in recommends)
    return np.mean(hits)


positives = [[user, (7 * user + 3 * i) % ITEMS] for user in range(USERS) for i in range(5)]
tests = [
    [user, (7 * user + 1 + 5 * i) % ITEMS]
    for user in range(USERS)
    for i in range(args.test_num_ng + 1)
]
train_dataset = NCFData(positives, args.num_ng, True)
train_dataset.ng_sample()
test_dataset = NCFData(tests, 0, False)
train_loader = adl.AdaptiveDataLoader(
    train_dataset, batch_size=args.batch_size, shuffle=True, num_workers=0, drop_last=True
)
test_loader = data.DataLoader(
    test_dataset, batch_size=args.test_num_ng + 1, shuffle=False, num_workers=0
)
if args.autoscale_bsz:
    train_loader.autoscale_batch_size(32768, local_bsz_bounds=(32, 32768))

network = NCF(USERS, ITEMS, args.factor_num)
loss_function = nn.BCEWithLogitsLoss()
optimizer = optim.Adam(network.parameters(), lr=args.lr)
network = adl.AdaptiveDataParallel(network, optimizer)

tensorboard_dir = os.path.join(
    os.getenv("ADAPTDL_TENSORBOARD_LOGDIR", "/tmp"), adaptdl.env.job_id()
)
with SummaryWriter(tensorboard_dir) as writer:
    for epoch in adl.remaining_epochs_until(args.epochs):
        network.train()
        stats = adl.Accumulator()
        train_loader.dataset.ng_sample()
        for user, item, label in train_loader:
            label = label.float()
            optimizer.zero_grad()
            prediction = network(user, item)
            loss = loss_function(prediction, label)
            loss.backward()
            optimizer.step()
            stats["loss_sum"] += loss.item() * label.size(0)
            stats["total"] += label.size(0)
        network.eval()
        rate = hit_rate(network, test_loader, args.top_k)
        with stats.synchronized():
            writer.add_scalar("Loss/train", stats["loss_sum"] / stats["total"], epoch)
            writer.add_scalar("HR", rate, epoch)
            print("Train:", epoch, stats["total"], flush=True)
        if adaptdl.env.replica_rank() == 0:
            torch.save(network._state.model.state_dict(), "ncf.pt")
