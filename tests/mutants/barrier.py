"""Faults in the barriers over TCP and over NCCL; see run. The star's handshake has tests and a fuzz target of its own."""
FOLDER = "worker/barrier"
TESTS = {"nccl/": ["nccl_barrier_test"], "": ["barrier_test"]}

MUTANTS = [
    ("barrier.h", "into.stop_flags |= other.stop_flags;", "into.stop_flags = other.stop_flags;", "only the last rank's wish to stop counts"),
    ("star/star_barrier.cc", "  arrived_.assign(arrived_.size(), false);\n", "", "children that came to one step count in the next"),
    ("star/star_barrier.cc", "frame->step != step ||", "", "ranks at different steps meet"),
    ("star/star_barrier.cc", "culprit_ = frame->rank;\n    return PeerFailure", "return PeerFailure", "a rank that passes a failure on is blamed for it"),
    ("star/star_barrier.cc", "  frame.rank = culprit_;\n", "", "the rank that noticed a failure is named as its cause"),
    ("star/star_barrier.cc", "if (absl::IsDeadlineExceeded(taken.status())) return BlameMissing(taken.status(), Missing());", "", "nobody is blamed when a child's patience ends first"),
    ("star/star_barrier.cc", "    Fold(frame->view, view);\n    arrived_[i] = true;", "    view = frame->view;\n    arrived_[i] = true;", "only the last child's contribution counts"),
    ("star/star_barrier.cc", "arrived_[i] ? WireType::kError : WireType::kReduce", "WireType::kReduce", "a child contributes twice to a step"),
    ("star/star_barrier.cc", "child.Send(bytes);\n  return view;", "if (!child.Send(bytes)) return Fail(absl::UnavailableError(\"gone\"));\n  return view;", "a child that is gone spoils a step that is complete"),
    ("nccl/nccl_barrier.cc", "comm_, stream_),\n                        \"ncclAllReduce\");\n    if (status.ok()) status = AwaitComm(patience);", "comm_, stream_),\n                        \"ncclAllReduce\");", "work goes into the stream behind a launch that is in progress"),
    ("nccl/nccl_barrier.cc", "if (comm_ != nullptr) AbortComm(std::exchange(comm_, nullptr), options_.device, options_.abort_patience);", "if (comm_ != nullptr && rank_ < 0) AbortComm(std::exchange(comm_, nullptr), options_.device, options_.abort_patience);", "a failed communicator is not aborted"),
    ("nccl/nccl_barrier.cc", "    if (!failure_.ok()) return failure_;\n", "", "the reason why a barrier ended changes"),
    ("nccl/nccl_barrier.cc", "if (group.communicator_id == offer_) offer_.clear();", "", "a unique id is offered twice"),
]
