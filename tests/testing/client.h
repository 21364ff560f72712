// A client's stream without a protocol, which keeps what it gets. Threads: one.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "router/requests/token_sink.h"

namespace bfio::router {

class Client final : public TokenSink {
 public:
  // `from`: the index of the first token that it still needs. Violations of TokenSink's contract go to
  // `broken`, which outlives it.
  Client(uint64_t id, uint32_t from, std::vector<std::string>* broken)
      : id_(id), next_(from), broken_(broken) {}

  uint64_t id() const override { return id_; }
  const std::string& traceparent() const override { return traceparent_; }
  void SetModel(const std::string& digest) override {
    if (model.empty()) model = begun_ ? "too late" : digest;
  }
  Delivery Deliver(uint32_t index, absl::Span<const uint32_t> given, const LogprobsView& of_given,
                   absl::Time) override {
    if (stuck) return Delivery::kTooSlow;
    Take(index, given, of_given);
    return enough > 0 && tokens.size() >= enough ? Delivery::kEnough : Delivery::kFlush;
  }
  Delivery Pass(absl::Span<const PassedPtr> messages, absl::Time) override {
    passed.insert(passed.end(), messages.begin(), messages.end());
    return Delivery::kFlush;
  }
  void StartOver() override { passed.clear(); }
  void CatchUp(uint32_t index, absl::Span<const uint32_t> given, const LogprobsView& of_given) override {
    if (begun_) broken_->push_back("a stream catches up before all else");
    Take(index, given, of_given);
  }
  bool End(const absl::Status& why, std::optional<Finish> with) override {
    if (status) return false;
    if (with && !why.ok()) broken_->push_back("what has failed has no finish");
    status = why;
    finish = std::move(with);
    return true;
  }
  bool Cancelled() override { return gone; }
  void Flush() override {}
  void BreakOff() override {
    if (open()) broken_->push_back("only streams that have ended are broken off");
    broken_off = true;
  }

  bool open() const { return !status.has_value(); }

  // As the client sent it.
  ClientRequest request;
  // Whether a token is one of the request's; empty: any is.
  using Own = std::function<bool(uint32_t index, uint32_t token)>;
  Own own;
  // Deliver refuses all tokens, as a client's stream does that is not read.
  bool stuck = false;
  // The client has cancelled the call, which its owner may not have been notified of.
  bool gone = false;
  // Number of tokens after which the client needs no more; 0: unlimited.
  size_t enough = 0;
  std::string model;
  std::vector<uint32_t> tokens;
  Logprobs logprobs;
  std::vector<PassedPtr> passed;
  std::optional<absl::Status> status;
  std::optional<Finish> finish;
  bool broken_off = false;

 private:
  void Take(uint32_t index, absl::Span<const uint32_t> given, const LogprobsView& of_given) {
    if (!open()) broken_->push_back("nothing follows the end");
    if (index != next_) broken_->push_back("a stream has no holes");
    for (const uint32_t token : given) {
      if (own && !own(next_, token)) broken_->push_back("a client gets its own tokens, in order");
      ++next_;
    }
    tokens.insert(tokens.end(), given.begin(), given.end());
    logprobs.Append(of_given);
    begun_ = true;
  }

  const uint64_t id_;
  const std::string traceparent_;
  uint32_t next_;
  bool begun_ = false;
  std::vector<std::string>* const broken_;
};

}  // namespace bfio::router
