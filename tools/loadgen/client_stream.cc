#include "tools/loadgen/client_stream.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/net/wire_time.h"

namespace bfio::loadgen {
namespace {

// After a resume this many of the received tokens are requested again, to compare them.
constexpr uint32_t kOverlap = 4;

// The index from which a stream is requested.
uint32_t FirstIndex(const Attempt& attempt) {
  return attempt.resume ? attempt.received->tokens - std::min(attempt.received->tokens, kOverlap) : 0;
}

v1::GenerateRequest RequestOf(const Attempt& attempt) {
  v1::GenerateRequest request;
  request.set_request_id(attempt.request_id);
  request.set_prompt_length(attempt.planned.prompt_tokens);
  request.set_max_new_tokens(attempt.planned.output_tokens);
  request.set_ignore_eos(!attempt.planned.hidden_length.has_value());
  if (attempt.planned.hidden_length) request.mutable_sampling()->set_seed(*attempt.planned.hidden_length);
  if (attempt.ttft_objective > absl::ZeroDuration())
    SetDuration(attempt.ttft_objective, request.mutable_ttft_objective());
  if (!attempt.resume_token.empty()) {
    request.set_resumable(true);
    request.set_resume_token(attempt.resume_token);
  }
  if (attempt.resume) {
    request.set_resume_from_index(FirstIndex(attempt));
    request.set_resume_ticket(attempt.received->resume_ticket);
    // A router that has lost the request does not compute these tokens again, except those that are requested
    // again.
    const std::vector<uint32_t>& ids = attempt.received->ids;
    request.mutable_received_token_ids()->Add(
        ids.begin(), ids.begin() + std::min<size_t>(ids.size(), FirstIndex(attempt)));
  }
  return request;
}

class ClientStream final : public client::StreamCall {
 public:
  explicit ClientStream(Attempt attempt)
      : StreamCall(RequestOf(attempt), attempt.deadline, *attempt.metadata),
        attempt_(std::move(attempt)),
        checker_(attempt_.request_id, attempt_.planned.prompt_tokens, attempt_.planned.output_tokens,
                 FirstIndex(attempt_), attempt_.planned.hidden_length.has_value()) {}

 private:
  Then OnMessage(v1::GenerateResponse& response, absl::Time arrived) override {
    Compare(response);
    checker_.OnMessage(response);
    Received& received = *attempt_.received;
    if (checker_.tokens() > received.tokens) TimeTokens(arrived, checker_.tokens() - received.tokens);
    received.tokens = std::max(received.tokens, checker_.tokens());
    return Then::kRead;
  }

  // Tokens that are delivered again must have the same ids.
  void Compare(const v1::GenerateResponse& response) {
    if (attempt_.resume_token.empty()) return;
    if (!response.resume_ticket().empty()) attempt_.received->resume_ticket = response.resume_ticket();
    std::vector<uint32_t>& ids = attempt_.received->ids;
    for (int i = 0; i < response.token_ids_size(); ++i) {
      const size_t index = response.first_index() + static_cast<size_t>(i);
      if (index < ids.size()) {
        attempt_.received->mismatches += ids[index] != response.token_ids(i);
      } else if (index == ids.size()) {  // the checker reports gaps
        ids.push_back(response.token_ids(i));
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

  void OnEnd(const grpc::Status& status, absl::Time ended) override {
    const bool broken = !checker_.breach().empty();
    checker_.OnEnd(static_cast<absl::StatusCode>(status.error_code()));
    // A complete response is not requested again.
    const bool complete = status.error_code() == grpc::StatusCode::UNAVAILABLE && checker_.finished();
    attempt_.done({.status = complete ? grpc::Status::OK : status,
                   .breach = checker_.breach(),
                   .breach_at_end = !broken && !checker_.breach().empty(),
                   .end = ended});
  }

  const Attempt attempt_;
  StreamChecker checker_;
};

}  // namespace

std::shared_ptr<client::StreamCall> StartStream(v1::Inference::Stub& stub, Attempt attempt) {
  auto stream = std::make_shared<ClientStream>(std::move(attempt));
  stream->Start(stub);
  return stream;
}

void StreamChecker::OnMessage(const v1::GenerateResponse& message) {
  if (finished_) Breach("a message came after the finish");
  // Messages need not repeat the request id, but must not carry another one.
  if (!message.request_id().empty() && message.request_id() != request_id_) {
    Breach(absl::StrCat("a message carries the id of another request, ", message.request_id()));
  }
  const auto tokens = static_cast<uint32_t>(message.token_ids_size());
  if (tokens > 0 && message.first_index() != tokens_) {
    Breach(absl::StrCat("token index ", message.first_index(), " came where ", tokens_, " was expected"));
  }
  tokens_ += tokens;
  if (tokens_ > output_tokens_)
    Breach(absl::StrCat(tokens_, " tokens came, ", output_tokens_, " were requested"));
  if (message.has_finish()) CheckFinish(message.finish());
}

void StreamChecker::CheckFinish(const v1::Finish& finish) {
  if (finished_) Breach("a second finish came");
  finished_ = true;
  const bool stopped = open_ended_ && finish.reason() == v1::FINISH_REASON_STOP;
  if (finish.reason() != v1::FINISH_REASON_LENGTH && !stopped)
    Breach("the finish reason is not the requested length limit");
  if (stopped ? tokens_ == 0 : tokens_ != output_tokens_) {
    Breach(absl::StrCat("finished after ", tokens_, " tokens, ", output_tokens_, " were requested"));
  }
  const v1::Usage& usage = finish.usage();
  if (!finish.has_usage()) {
    Breach("the finish carries no usage");
  } else if (usage.prompt_tokens() != prompt_tokens_ || usage.completion_tokens() != tokens_) {
    Breach(absl::StrCat("usage counts ", usage.prompt_tokens(), " + ", usage.completion_tokens(),
                        " prompt + output tokens, the stream had ", prompt_tokens_, " + ", tokens_));
  }
}

void StreamChecker::OnEnd(absl::StatusCode code) {
  if (code == absl::StatusCode::kOk && !finished_) Breach("the stream ended with OK but without a finish");
  if (code != absl::StatusCode::kOk && code != absl::StatusCode::kUnavailable && finished_)
    Breach("the stream ended with an error after the finish");
}

void StreamChecker::Breach(std::string text) {
  if (breach_.empty()) breach_ = absl::StrCat("request ", request_id_, ": ", text);
}

}  // namespace bfio::loadgen
