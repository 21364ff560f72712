#include "tools/sim/run/options.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "router/core/admission/admission_text.h"
#include "router/core/lookahead/lookahead.h"
#include "tools/sim/rank/drift.h"
#include "tools/sim/rank/shared.h"

namespace bfio::sim {
namespace {

absl::Status OneOf(const char* flag, const std::string& value, absl::Span<const char* const> known) {
  for (const char* name : known) {
    if (value == name) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, "=", value, ": choose one of ", absl::StrJoin(known, ", ")));
}

}  // namespace

absl::Status Validate(const SimOptions& options) {
  absl::Status status = OneOf("mode", options.mode, {"overload", "arrivals", "closed"});
  status.Update(OneOf("dispatch", options.dispatch, {"pool", "instant"}));
  status.Update(OneOf("plan_mode", options.plan_mode, {"lockstep", "pipelined"}));
  const auto lookahead = core::MakeLookahead(options.lookahead);
  status.Update(lookahead.status());
  status.Update(Drift::Parse(options.drift, options.seed).status());
  const auto admission = core::ParseAdmission(options.admission);
  status.Update(admission.status());
  BFIO_RETURN_IF_ERROR(status);
  const bool instant = options.dispatch == "instant", memory = options.kv_tokens > 0,
             admits = admission->kv.kind != core::KvAdmissionOptions::Kind::kNone;
  if (admits) BFIO_RETURN_IF_ERROR(core::CheckKvAdmission(admission->kv, **lookahead));
  const auto reject = [&status](bool bad, const char* why) {
    if (bad) status.Update(absl::InvalidArgumentError(why));
  };
  reject(instant && options.plan_mode != "lockstep",
         "--plan_mode=pipelined needs --dispatch=pool, because instant dispatch makes no plans");
  reject(instant && memory, "--kv_tokens needs --dispatch=pool");
  reject(instant && admission->wait.kind != core::WaitAdmissionOptions::Kind::kNone,
         "--admission=wait needs --dispatch=pool");
  reject(admits && !memory, "--admission needs --kv_tokens");
  reject(admits && (instant || options.drift != "growth"),
         "--admission needs --dispatch=pool and --drift=growth");
  reject(options.steps == 0 && options.requests == 0,
         "--steps=0 needs --requests, otherwise the run would not end");
  reject(options.mode == "closed" && options.concurrency == 0, "--mode=closed needs --concurrency");
  reject(memory && absl::StartsWith(options.drift, "sequence"),
         "--kv_tokens cannot be used with --drift=sequence, because a request could exceed the KV that it "
         "reserves");
  return status;
}

}  // namespace bfio::sim
