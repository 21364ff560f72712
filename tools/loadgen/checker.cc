#include "tools/loadgen/checker.h"

#include "absl/strings/str_cat.h"

namespace bfio::loadgen {

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
