#include "tools/loadgen/client_stream.h"

#include <algorithm>
#include <utility>

#include "common/base/clock.h"
#include "common/net/tsan_edge.h"
#include "grpcpp/support/client_callback.h"
#include "tools/loadgen/checker.h"

namespace bfio::loadgen {
namespace {

// After a resume so many tokens are asked for again, to see that they are the same.
constexpr uint32_t kOverlap = 4;

// Where a stream is asked to begin.
uint32_t FirstIndex(const Attempt& attempt) {
  return attempt.resume ? attempt.received->tokens - std::min(attempt.received->tokens, kOverlap) : 0;
}

StreamMessage Plain(const v1::GenerateResponse& response) {
  StreamMessage message = {.request_id = response.request_id(),
                           .first_index = response.first_index(),
                           .tokens = static_cast<uint32_t>(response.token_ids_size())};
  if (response.has_finish()) {
    const v1::Finish& finish = response.finish();
    message.finish = {.reason_is_length = finish.reason() == v1::FINISH_REASON_LENGTH,
                      .reason_is_stop = finish.reason() == v1::FINISH_REASON_STOP,
                      .has_usage = finish.has_usage(),
                      .prompt_tokens = finish.usage().prompt_tokens(),
                      .completion_tokens = finish.usage().completion_tokens()};
  }
  return message;
}

StreamChecker::End EndOf(const grpc::Status& status) {
  if (status.ok()) return StreamChecker::End::kOk;
  const bool lost = status.error_code() == grpc::StatusCode::UNAVAILABLE;
  return lost ? StreamChecker::End::kConnectionLost : StreamChecker::End::kError;
}

class ClientStream final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  explicit ClientStream(Attempt attempt)
      : attempt_(std::move(attempt)),
        checker_(attempt_.request_id, attempt_.planned.prompt_tokens, attempt_.planned.output_tokens,
                 FirstIndex(attempt_), attempt_.planned.open_ended),
        context_(std::make_shared<grpc::ClientContext>()) {
    request_.set_request_id(attempt_.request_id);
    request_.set_prompt_length(attempt_.planned.prompt_tokens);
    request_.set_max_new_tokens(attempt_.planned.output_tokens);
    request_.set_ignore_eos(!attempt_.planned.open_ended);
    if (attempt_.planned.agent != nullptr) {
      const AgentPlan::Call& call = attempt_.planned.agent->calls[attempt_.planned.call];
      request_.set_parent_id(attempt_.parent_id);
      request_.set_stage(call.stage);
      request_.set_remaining_tokens(call.remaining_tokens);
      // Later calls have the deadline that the first ones said.
      if (call.stage == 0) Ask(attempt_.agent_timeout, &v1::GenerateRequest::mutable_parent_timeout);
    }
    Ask(attempt_.ttft_objective, &v1::GenerateRequest::mutable_ttft_objective);
    Ask(attempt_.tpot_objective, &v1::GenerateRequest::mutable_tpot_objective);
    if (!attempt_.resume_token.empty()) {
      request_.set_resumable(true);
      request_.set_resume_token(attempt_.resume_token);
    }
    if (attempt_.resume) {
      request_.set_resume_from_index(FirstIndex(attempt_));
      // A router that has lost the request need not make them again; those that are asked for once more it
      // must.
      const std::vector<uint32_t>& ids = attempt_.received->ids;
      request_.mutable_received_token_ids()->Add(
          ids.begin(), ids.begin() + std::min<size_t>(ids.size(), FirstIndex(attempt_)));
    }
    context_->set_deadline(absl::ToChronoTime(attempt_.deadline));
    attempt_.login->Present(*context_);
  }

  void Ask(absl::Duration duration, google::protobuf::Duration* (v1::GenerateRequest::*field)()) {
    if (duration <= absl::ZeroDuration()) return;
    google::protobuf::Duration* out = (request_.*field)();
    out->set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &duration));
    out->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(duration)));
  }

  std::shared_ptr<grpc::ClientContext> Start(v1::Inference::Stub& stub) {
    std::shared_ptr<grpc::ClientContext> context = context_;
    stub.async()->Generate(context.get(), &request_, this);
    GrpcHandOver(this);
    StartRead(&response_);
    StartCall();  // from here on the stream may be gone at any moment
    return context;
  }

 private:
  void OnReadDone(bool ok) override {
    const GrpcReaction reaction(this);
    if (!ok) return;  // OnDone follows
    const absl::Time now = MonotonicNow();
    const StreamMessage message = Plain(response_);
    Compare();
    checker_.OnMessage(message);
    Received& received = *attempt_.received;
    if (checker_.tokens() > received.tokens) TimeTokens(now, checker_.tokens() - received.tokens);
    received.tokens = std::max(received.tokens, checker_.tokens());
    response_.Clear();
    GrpcHandOver(this);
    StartRead(&response_);
  }

  // Tokens that come again must be what they were.
  void Compare() {
    if (attempt_.resume_token.empty()) return;
    std::vector<uint32_t>& ids = attempt_.received->ids;
    for (int i = 0; i < response_.token_ids_size(); ++i) {
      const size_t index = response_.first_index() + static_cast<size_t>(i);
      if (index < ids.size()) {
        attempt_.received->mismatches += ids[index] != response_.token_ids(i);
      } else if (index == ids.size()) {  // a gap is the checker's to tell
        ids.push_back(response_.token_ids(i));
      }
    }
  }

  void TimeTokens(absl::Time now, uint32_t tokens) {
    Received& received = *attempt_.received;
    attempt_.live_tokens->fetch_add(tokens, std::memory_order_relaxed);
    if (!received.first_token.has_value()) {
      received.first_token = now;
      if (tokens > 1) received.gaps.push_back({0, tokens - 1});
    } else {
      received.gaps.push_back({absl::ToDoubleSeconds(now - received.last_token), tokens});
    }
    received.last_token = now;
  }

  void OnDone(const grpc::Status& status) override {
    GrpcTakeOver(this);
    const bool broken = !checker_.breach().empty();
    const StreamChecker::End end = EndOf(status);
    checker_.OnEnd(end);
    result_.end = MonotonicNow();
    // Nobody asks again for what is complete.
    const bool complete = end == StreamChecker::End::kConnectionLost && checker_.finished();
    result_.status = complete ? grpc::Status::OK : status;
    result_.breach = checker_.breach();
    result_.breach_at_end = !broken && !result_.breach.empty();
    AttemptResult result = std::move(result_);
    const std::function<void(AttemptResult)> done = std::move(attempt_.done);
    // First away with us: once `done` has counted the last stream, main may take channels and stubs down.
    delete this;
    done(std::move(result));
  }

  Attempt attempt_;
  StreamChecker checker_;
  std::shared_ptr<grpc::ClientContext> context_;
  v1::GenerateRequest request_;
  v1::GenerateResponse response_;
  AttemptResult result_;
};

}  // namespace

std::shared_ptr<grpc::ClientContext> StartStream(v1::Inference::Stub& stub, Attempt attempt) {
  return (new ClientStream(std::move(attempt)))->Start(stub);
}

}  // namespace bfio::loadgen
