"""Faults in the barriers within a process and over TCP; see run. The star's handshake has tests and a fuzz target of its own."""
FOLDER = "worker/barrier"
TESTS = {"": ["barrier_test"]}

MUTANTS = [
    ("local/local_barrier.cc", "alike_ = alike_ && spec.signature == signature_;", "alike_ = spec.signature == signature_;", "only the last rank's signature counts"),
    ("local/local_barrier.cc", "    if (present_[spec.rank])\n", "    if (false)\n", "one rank is in a group twice"),
    ("local/local_barrier.cc", "      if (first) {\n        folded_ = ViewOf(mine);", "      if (first && step == 0) {\n        folded_ = ViewOf(mine);", "sums go on from the step before"),
    ("local/local_barrier.cc", "if (call != call_) {", "if (call.step != call_.step) {", "ranks that make different calls in a step meet"),
    ("local/local_barrier.cc", "      arrived_ = 0;\n", "", "the ranks of one meeting count in the next"),
    ("local/local_barrier.cc", "at += static_cast<size_t>(world) * sum.size();", "at += sum.size();", "a rank's second node is read from its first"),
    ("local/local_barrier.cc", "~LocalBarrier() override { group_->Fail(Left(\"left\")); }", "~LocalBarrier() override = default;", "nobody hears that a rank has left"),
    ("local/local_barrier.cc", "return !status.ok() && aborted_.load() ?", "return !status.ok() ?", "a peer's failure looks like the rank's own abort"),
    ("view.h", "into.stop_flags |= other.stop_flags;", "into.stop_flags = other.stop_flags;", "only the last rank's wish to stop counts"),
    ("star/star_barrier.cc", "  arrived_.assign(arrived_.size(), false);\n", "", "children that came to one step count in the next"),
    ("star/star_barrier.cc", "frame->step != step ||", "", "ranks at different steps meet"),
    ("star/star_barrier.cc", "culprit_ = frame->rank;\n    return PeerFailure", "return PeerFailure", "a rank that passes a failure on is blamed for it"),
    ("star/star_barrier.cc", "  frame.rank = culprit_;\n", "", "the rank that noticed a failure is named as its cause"),
    ("star/star_barrier.cc", "if (absl::IsDeadlineExceeded(taken.status())) return BlameMissing(taken.status(), Missing());", "", "nobody is blamed when a child's patience ends first"),
    ("star/star_barrier.cc", "    Fold((*frame)->view, view);\n    arrived_[i] = true;", "    view = (*frame)->view;\n    arrived_[i] = true;", "only the last child's contribution counts"),
    ("star/star_collectives.cc", "all.data() + static_cast<size_t>(subtree_[i]) * n", "all.data() + i * n", "gathered numbers lie in the tree's order, not the ranks'"),
    ("star/star_collectives.cc", "const size_t offset = static_cast<size_t>(subtree_[i]) * n;", "const size_t offset = i * n;", "ranks get one another's sums"),
    ("star/star_collectives.cc", "  size_t at = n;\n", "  size_t at = 0;\n", "a child's subtree gets its parent's sum"),
    ("star/star_endpoint.cc", "if (!SameSignature(*met)) return SignatureError(group.epoch);", "", "ranks that compute different things form a group"),
    ("star/star_barrier.cc", "arrived_[i] ? WireType::kError : WireType::kReduce", "WireType::kReduce", "a child contributes twice to a step"),
    ("star/star_barrier.cc", "child.Send(bytes);\n  return view;", "if (!child.Send(bytes)) return Fail(absl::UnavailableError(\"gone\"));\n  return view;", "a child that is gone spoils a step that is complete"),
    ("star/star_collectives.cc", "      if (out.slot != kParent) return absl::OkStatus();\n", "", "a child that is gone spoils a collective that is complete"),
    ("star/star_collectives.cc", "(*frame)->payload != expected", "(*frame)->payload > expected", "numbers that were never sent are waited for"),
    ("step_peers.cc", "waited_ += MonotonicNow() - start;", "waited_ = MonotonicNow() - start;", "only the last call's wait counts"),
]
