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
  for (const double speed : options.speeds) status.Update(CheckBounds({{"speeds", speed, 1e-3, 1e3}}));
  status.Update(CheckBounds({{"ranks", options.workers, 1, 65536},
                             {"slots", options.batch, 1, 1 << 20},
                             {"classes", options.classes, 1, 5},
                             {"tenants", options.tenants, 1, 5},
                             {"reveal", options.reveal, 1, 1 << 20},
                             {"concurrency", options.concurrency, 0, 1 << 20},
                             {"report_delay", options.report_delay, 0, 10'000},
                             {"max_new_tokens", options.max_new_tokens, 0, 1e9},
                             {"kv_tokens", options.kv_tokens, 0, 1e15},
                             {"steps", options.steps, 0, 1e9},
                             {"requests", options.requests, 0, 1e12},
                             {"time_scale", options.load, 1e-9, 1e9},
                             {"c", options.cost.c_s, 1e-9, 1e6},
                             {"tl", options.cost.tl_s_per_token, 0, 1e6},
                             {"prefill", options.cost.prefill_s_per_token, 0, 1e6},
                             {"overhead", options.overhead_s, 0, 1e6},
                             {"jitter", options.jitter, 0, 10},
                             {"prediction_error", options.prediction_error, 0, 1},
                             {"hint_lead", options.hint_lead, 1e-3, 1e6},
                             {"hint_noise", options.hint_noise, 0, 100}}));
  return status;
}

}  // namespace bfio::sim
