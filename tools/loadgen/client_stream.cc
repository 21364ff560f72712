#include "tools/loadgen/client_stream.h"

#include <utility>

#include "common/base/clock.h"
#include "common/net/tsan_edge.h"
#include "grpcpp/support/client_callback.h"
#include "tools/loadgen/checker.h"

namespace bfio::loadgen {
namespace {

StreamMessage Plain(const v1::GenerateResponse& response) {
  StreamMessage message = {.request_id = response.request_id(),
                           .first_index = response.first_index(),
                           .tokens = static_cast<uint32_t>(response.token_ids_size())};
  if (response.has_finish()) {
    const v1::Finish& finish = response.finish();
    message.finish = {.reason_is_length = finish.reason() == v1::FINISH_REASON_LENGTH,
                      .has_usage = finish.has_usage(),
                      .prompt_tokens = finish.usage().prompt_tokens(),
                      .completion_tokens = finish.usage().completion_tokens()};
  }
  return message;
}

class ClientStream final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  explicit ClientStream(Attempt attempt)
      : attempt_(std::move(attempt)),
        checker_(attempt_.request_id, attempt_.planned.prompt_tokens, attempt_.planned.output_tokens),
        context_(std::make_shared<grpc::ClientContext>()) {
    request_.set_request_id(attempt_.request_id);
    request_.set_prompt_length(attempt_.planned.prompt_tokens);
    request_.set_max_new_tokens(attempt_.planned.output_tokens);
    request_.set_ignore_eos(true);
    context_->set_deadline(absl::ToChronoTime(attempt_.deadline));
    attempt_.login->Present(*context_);
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
    checker_.OnMessage(message);
    if (message.tokens > 0) TimeTokens(now, message.tokens);
    response_.Clear();
    GrpcHandOver(this);
    StartRead(&response_);
  }

  void TimeTokens(absl::Time now, uint32_t tokens) {
    attempt_.live_tokens->fetch_add(tokens, std::memory_order_relaxed);
    if (!result_.first_token.has_value()) {
      result_.first_token = now;
      if (tokens > 1) result_.gaps.push_back({0, tokens - 1});
    } else {
      result_.gaps.push_back({absl::ToDoubleSeconds(now - last_token_), tokens});
    }
    last_token_ = now;
  }

  void OnDone(const grpc::Status& status) override {
    GrpcTakeOver(this);
    checker_.OnEnd(status.ok());
    result_.end = MonotonicNow();
    result_.status = status;
    result_.tokens = checker_.tokens();
    result_.breach = checker_.breach();
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
  absl::Time last_token_;
  AttemptResult result_;
};

}  // namespace

std::shared_ptr<grpc::ClientContext> StartStream(v1::Inference::Stub& stub, Attempt attempt) {
  return (new ClientStream(std::move(attempt)))->Start(stub);
}

}  // namespace bfio::loadgen
