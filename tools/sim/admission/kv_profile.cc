#include "tools/sim/admission/kv_profile.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace bfio::sim {
namespace {

constexpr int64_t kForever = std::numeric_limits<int64_t>::max() / 4;

// The number of further lines that can be added before `other` exceeds `best`.
int64_t LastsAgainst(int64_t value, int64_t time, int64_t other_value, int64_t other_time) {
  if (other_time <= time) return kForever;
  return (value - other_value) / (other_time - time);
}

}  // namespace

KvProfile::KvProfile(int64_t window) {
  window_ = 1;
  while (window_ < window + 1) window_ *= 2;
  nodes_.resize(static_cast<size_t>(2 * window_));
  for (int64_t t = 0; t < window_; ++t) nodes_[static_cast<size_t>(window_ + t)].best = {0, t};
  for (auto& node : nodes_) node.lasts = kForever;
  for (size_t node = static_cast<size_t>(window_) - 1; node >= 1; --node) Pull(node);
}

void KvProfile::Advance(int64_t now) {
  if (now - now_ >= window_) {
    *this = KvProfile(window_ - 1);
    now_ = now;
    for (int64_t t = now; t < now + window_; ++t) {
      nodes_[static_cast<size_t>(window_ + (t & (window_ - 1)))].best = {0, t};
    }
    for (size_t node = static_cast<size_t>(window_) - 1; node >= 1; --node) Pull(node);
    return;
  }
  for (; now_ < now; ++now_) SetTime(now_ & (window_ - 1), now_ + window_);
}

void KvProfile::Add(const KvLine& line) {
  if (line.to - now_ >= window_) Grow(line.to - now_);
  Change(std::max(line.from, now_), line.to, line.size, 1);
}

void KvProfile::Remove(const KvLine& line) {
  if (line.to < now_) return;
  Change(std::max(line.from, now_), line.to, -line.size, -1);
}

int64_t KvProfile::Peak(int64_t from, int64_t to) const {
  return AskRing(from, std::min(to, now_ + window_ - 1), 0);
}

int64_t KvProfile::PeakWith(const KvLine& line) const {
  const int64_t from = std::max(line.from, now_), last = now_ + window_ - 1;
  const int64_t within = from <= last ? AskRing(from, std::min(line.to, last), 1) : 0;
  // Beyond the window there is only the line itself.
  return std::max(within, line.to) + line.size;
}

int64_t KvProfile::AskRing(int64_t from, int64_t to, int lines) const {
  if (from > to) return 0;
  const int64_t first = from & (window_ - 1), last = to & (window_ - 1);
  if (first <= last) return Ask(1, 0, window_ - 1, first, last, lines);
  return std::max(Ask(1, 0, window_ - 1, first, window_ - 1, lines), Ask(1, 0, window_ - 1, 0, last, lines));
}

void KvProfile::Change(int64_t from, int64_t to, int64_t size, int lines) {
  const int64_t first = from & (window_ - 1), last = to & (window_ - 1);
  if (first <= last) return Change(1, 0, window_ - 1, first, last, size, lines);
  Change(1, 0, window_ - 1, first, window_ - 1, size, lines);
  Change(1, 0, window_ - 1, 0, last, size, lines);
}

void KvProfile::Change(size_t node, int64_t left, int64_t right, int64_t from, int64_t to, int64_t size,
                       int lines) {
  if (to < left || right < from) return;
  Node& here = nodes_[node];
  const bool inside = from <= left && right <= to;
  // When lines are removed, any time below may become the largest, so both children are visited.
  if (inside && (left == right || (lines >= 0 && here.lasts >= lines))) return Apply(here, size, lines);
  Push(node);
  const int64_t middle = (left + right) / 2;
  Change(2 * node, left, middle, from, to, size, lines);
  Change(2 * node + 1, middle + 1, right, from, to, size, lines);
  Pull(node);
}

int64_t KvProfile::Ask(size_t node, int64_t left, int64_t right, int64_t from, int64_t to, int lines) const {
  if (to < left || right < from) return std::numeric_limits<int64_t>::min();
  const Node& here = nodes_[node];
  if (from <= left && right <= to && here.lasts >= lines) return here.best.value + lines * here.best.time;
  Push(node);
  const int64_t middle = (left + right) / 2;
  return std::max(Ask(2 * node, left, middle, from, to, lines),
                  Ask(2 * node + 1, middle + 1, right, from, to, lines));
}

void KvProfile::Apply(Node& node, int64_t size, int64_t lines) const {
  node.best.value += size + lines * node.best.time;
  node.size += size;
  node.lines += lines;
  if (node.lasts < kForever) node.lasts -= lines;
}

void KvProfile::Push(size_t node) const {
  Node& here = nodes_[node];
  if (here.size == 0 && here.lines == 0) return;
  for (const size_t child : {2 * node, 2 * node + 1}) Apply(nodes_[child], here.size, here.lines);
  here.size = here.lines = 0;
}

void KvProfile::Pull(size_t node) const {
  const Node &a = nodes_[2 * node], &b = nodes_[2 * node + 1];
  const bool left =
      a.best.value > b.best.value || (a.best.value == b.best.value && a.best.time > b.best.time);
  const Node &best = left ? a : b, &other = left ? b : a;
  Node& here = nodes_[node];
  here.best = best.best;
  here.lasts = std::min(
      {a.lasts, b.lasts, LastsAgainst(best.best.value, best.best.time, other.best.value, other.best.time)});
}

void KvProfile::SetTime(int64_t slot, int64_t time) {
  size_t node = 1;
  for (int64_t left = 0, right = window_ - 1; left < right;) {
    Push(node);
    const int64_t middle = (left + right) / 2;
    node *= 2;
    if (slot <= middle) {
      right = middle;
    } else {
      left = middle + 1;
      ++node;
    }
  }
  nodes_[node].best = {0, time};
  nodes_[node].size = nodes_[node].lines = 0;
  for (node /= 2; node >= 1; node /= 2) Pull(node);
}

void KvProfile::Grow(int64_t window) {
  KvProfile larger(std::max(window, 2 * window_ - 1));
  larger.now_ = now_;
  std::vector<int64_t> sums(static_cast<size_t>(larger.window_));
  for (int64_t t = now_; t < now_ + window_; ++t) sums[static_cast<size_t>(t - now_)] = At(t);
  for (int64_t t = now_; t < now_ + larger.window_; ++t) {
    const int64_t slot = t & (larger.window_ - 1);
    larger.nodes_[static_cast<size_t>(larger.window_ + slot)].best = {sums[static_cast<size_t>(t - now_)], t};
  }
  for (size_t node = static_cast<size_t>(larger.window_) - 1; node >= 1; --node) larger.Pull(node);
  *this = std::move(larger);
}

}  // namespace bfio::sim
