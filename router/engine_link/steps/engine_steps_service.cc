#include "router/engine_link/steps/engine_steps_service.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "common/base/peer_text.h"
#include "common/base/spdlog.h"
#include "common/cost/batch_time.h"
#include "common/net/status.h"
#include "router/worker_link/worker_session.h"

namespace bfio::router {
namespace {

using Session = MessageSession<v1::EngineStep, v1::Allotment>;

// Bounds far above the values of any engine: tokens of a rank, and nanoseconds of a step (thirteen days).
constexpr uint64_t kMostTokens = uint64_t{1} << 40, kMostNanoseconds = uint64_t{1} << 50;

}  // namespace

absl::StatusOr<EngineStep> FromWire(const v1::EngineStep& wire) {
  if (wire.decodes() > kMostEngineSlots || wire.decode_context() > kMostTokens ||
      wire.step_ns() > kMostNanoseconds || wire.step() > kMostNanoseconds ||
      (wire.has_hello() && wire.hello().token_budget() < 1)) {
    return absl::InvalidArgumentError(
        "decodes, decode_context, step_ns, step or hello.token_budget is out of range");
  }
  EngineStep step;
  if (wire.has_hello()) step.token_budget = wire.hello().token_budget();
  step.step = static_cast<int64_t>(wire.step());
  step.decodes = wire.decodes();
  step.decode_tokens = wire.decode_tokens();
  step.decode_context = static_cast<int64_t>(wire.decode_context());
  step.prompt_tokens = wire.prompt_tokens();
  step.took = absl::Nanoseconds(static_cast<int64_t>(wire.step_ns()));
  BatchLoad prompts;
  for (const v1::PromptWork& prompt : wire.prompts()) {
    prompts.AddPrefill(prompt.computed(), prompt.done());
    const std::optional<EngineRequestName> name = EngineRequestName::Parse(prompt.request_id());
    if (name) step.prompts.push_back({*name, prompt.computed(), prompt.left()});
  }
  step.prefill_pairs = prompts.prefill_pairs;
  return step;
}

EngineStepsService::EngineStepsService(EngineLink* link, Authenticator* authenticator,
                                       FirstMessages::Limits messages)
    : WorkerPortService(messages), link_(link), authenticator_(authenticator) {
  Add("/bfio.v1.EngineSteps/Follow",
      [this](grpc::CallbackServerContext* context) { return Follow(context); });
}

CallReactor* EngineStepsService::Follow(grpc::CallbackServerContext* context) {
  if (authenticator_ != nullptr) authenticator_->Accepted(*context);
  const uint64_t stream = next_stream_.fetch_add(1);
  // Number of the answer; the link's thread makes answers one after another.
  const auto number = std::make_shared<uint64_t>(0);
  Session::Callbacks callbacks;
  callbacks.on_message = [this, stream, number](const std::shared_ptr<Session>& session,
                                                const v1::EngineStep& message) {
    absl::StatusOr<EngineStep> step = FromWire(message);
    if (!step.ok()) {
      session->Close(ToGrpcStatus(step.status()));
      return session->Consumed();
    }
    if (message.has_hello()) {
      spdlog::info("{} at {}: rank {} is connected to EngineSteps", PeerText(message.hello().engine()),
                   session->peer(), message.hello().rank());
    }
    link_->OnStep(stream, *std::move(step), [session, number](std::optional<int64_t> prompt_tokens) {
      v1::Allotment allotment;
      allotment.set_number(++*number);
      if (prompt_tokens) {
        allotment.set_prompt_tokens(
            static_cast<uint32_t>(std::clamp<int64_t>(*prompt_tokens, 0, int64_t{1} << 30)));
      }
      session->Send(std::move(allotment));
      session->Consumed();
    });
  };
  callbacks.on_gone = [this, stream](const std::shared_ptr<Session>&) { link_->OnStepsEnded(stream); };
  return Session::Create(context->peer(), std::move(callbacks), &bounds_, context).get();
}

}  // namespace bfio::router
