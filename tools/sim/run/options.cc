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

absl::Status CheckWords(const SimOptions& options) {
  absl::Status status = OneOf("mode", options.mode, {"overload", "arrivals", "closed"});
  status.Update(OneOf("dispatch", options.dispatch, {"pool", "instant"}));
  status.Update(OneOf("plan_mode", options.plan_mode, {"lockstep", "pipelined"}));
  if (const auto lookahead = core::MakeLookahead(options.lookahead); !lookahead.ok()) {
    status.Update(lookahead.status());
  }
  status.Update(Drift::Parse(options.drift, options.seed).status());
  return status;
}

absl::Status CheckInstant(const SimOptions& options) {
  if (options.dispatch != "instant") return absl::OkStatus();
  if (options.plan_mode != "lockstep") {
    return absl::InvalidArgumentError(
        "--plan_mode=pipelined needs --dispatch=pool, because instant dispatch makes no plans");
  }
  if (options.kv_tokens > 0) return absl::InvalidArgumentError("--kv_tokens needs --dispatch=pool");
  return absl::OkStatus();
}

absl::Status CheckAdmission(const SimOptions& options) {
  BFIO_ASSIGN_OR_RETURN(const auto admission, core::ParseAdmission(options.admission));
  const core::KvAdmissionOptions* const kv = &admission.kv;
  if (admission.wait.kind != core::WaitAdmissionOptions::Kind::kNone && options.dispatch != "pool") {
    return absl::InvalidArgumentError("--admission=wait needs --dispatch=pool");
  }
  if (kv->kind == core::KvAdmissionOptions::Kind::kNone) return absl::OkStatus();
  if (const auto lookahead = core::MakeLookahead(options.lookahead); lookahead.ok()) {
    BFIO_RETURN_IF_ERROR(core::CheckKvAdmission(*kv, **lookahead));
  }
  if (options.kv_tokens == 0) return absl::InvalidArgumentError("--admission needs --kv_tokens");
  if (options.dispatch != "pool" || options.drift != "growth") {
    return absl::InvalidArgumentError("--admission needs --dispatch=pool and --drift=growth");
  }
  return absl::OkStatus();
}

absl::Status CheckEnd(const SimOptions& options) {
  if (options.steps == 0 && options.requests == 0) {
    return absl::InvalidArgumentError("--steps=0 needs --requests, otherwise the run would not end");
  }
  if (options.mode == "closed" && options.concurrency == 0) {
    return absl::InvalidArgumentError("--mode=closed needs --concurrency");
  }
  if (options.kv_tokens > 0 && absl::StartsWith(options.drift, "sequence")) {
    return absl::InvalidArgumentError(
        "--kv_tokens cannot be used with --drift=sequence, because a request could exceed the KV that it "
        "reserves");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const SimOptions& options) {
  absl::Status status = CheckWords(options);
  status.Update(CheckInstant(options));
  status.Update(CheckEnd(options));
  status.Update(CheckAdmission(options));
  for (const double speed : options.speeds) status.Update(CheckBounds({{"speeds", speed, 1e-3, 1e3}}));
  status.Update(CheckBounds({{"workers", options.workers, 1, 65536},
                             {"batch", options.batch, 1, 1 << 20},
                             {"classes", options.classes, 1, 5},
                             {"tenants", options.tenants, 1, 5},
                             {"reveal", options.reveal, 1, 1 << 20},
                             {"concurrency", options.concurrency, 0, 1 << 20},
                             {"report_delay", options.report_delay, 0, 10'000},
                             {"max_new_tokens", options.max_new_tokens, 0, 1e9},
                             {"kv_tokens", options.kv_tokens, 0, 1e15},
                             {"steps", options.steps, 0, 1e9},
                             {"requests", options.requests, 0, 1e12},
                             {"load", options.load, 1e-9, 1e9},
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
