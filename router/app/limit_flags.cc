#include "router/app/limit_flags.h"

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "router/core/admission/admission_text.h"

ABSL_FLAG(uint32_t, replay_budget_mb, 256,
          "MiB of prompts and delivered tokens that are kept so that requests can be replayed and resumed");
ABSL_FLAG(uint32_t, replay_request_kb, 1024,
          "KiB of them that one request may take; one beyond it ends with its worker");
ABSL_FLAG(
    absl::Duration, resume_timeout, absl::Seconds(30),
    "how long a resumable request waits for a client to come back, running or ended, here and on workers");
ABSL_FLAG(
    absl::Duration, restart_settle, absl::Seconds(5),
    "after a restart, how long to wait for the workers that held requests before planning without them");
ABSL_FLAG(uint32_t, stream_buffer_kb, 64,
          "KiB of tokens that wait for a client that reads slowly; beyond it the client is cut off");
ABSL_FLAG(absl::Duration, slow_reader_timeout, absl::Seconds(30),
          "a client that takes none of its tokens for so long is cut off");
ABSL_FLAG(uint32_t, max_waiting_mb, 512,
          "MiB of prompts of requests that wait; beyond it clients are refused");
ABSL_FLAG(double, max_waiting_kv, 64,
          "KV tokens that waiting requests may come to need, in multiples of what the group has; beyond it "
          "clients get RESOURCE_EXHAUSTED; 0: any number");
ABSL_FLAG(
    std::string, admission, "none",
    "who may enter a worker's KV: none (a request reserves its prompt and max_new_tokens), kv_feasible "
    "(while memory holds to every end, by what --lookahead predicts), protection:alpha=A (while the share "
    "1 - A of it is not exceeded); and, alone or joined to these with +, who leaves the pool: wait or "
    "nested_wait (as many as make a batch; :tokens=N,most=K)");
ABSL_FLAG(double, admission_confidence, 0.99,
          "kv_feasible: probability that a worker's KV suffices for all that it runs, from 0.5 to below 1");
ABSL_FLAG(
    uint32_t, admission_hold, 64,
    "steps after which a waiting request that fits nowhere has a worker take nobody else until it fits");
ABSL_FLAG(
    std::string, tenant_limits, "",
    "TENANT:rps=N,tps=N,concurrent=N,priority=N;...: requests and tokens per second, requests at a time and "
    "largest priority of a tenant; * for each tenant that is not named");

namespace bfio::router {
namespace {

absl::Status CheckRange(absl::string_view flag, uint32_t value, uint32_t low, uint32_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, "=", value, ": must be within ", low, "..", high));
}

absl::Status CheckTime(absl::string_view flag, absl::Duration value) {
  if (value >= absl::ZeroDuration() && value <= absl::Hours(24)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, "=", absl::FormatDuration(value), ": must be within 0..24h"));
}

}  // namespace

absl::Status ReadLimitFlags(RouterOptions& options) {
  const uint32_t budget_mb = absl::GetFlag(FLAGS_replay_budget_mb);
  const uint32_t request_kb = absl::GetFlag(FLAGS_replay_request_kb);
  const uint32_t stream_kb = absl::GetFlag(FLAGS_stream_buffer_kb);
  const uint32_t waiting_mb = absl::GetFlag(FLAGS_max_waiting_mb);
  options.admission_hold = absl::GetFlag(FLAGS_admission_hold);
  const auto admission =
      core::ParseAdmission(absl::GetFlag(FLAGS_admission), absl::GetFlag(FLAGS_admission_confidence));
  if (!admission.ok()) return admission.status();
  options.admission = admission->kv;
  options.wait = admission->wait;
  options.resume_timeout = absl::GetFlag(FLAGS_resume_timeout);
  options.restart_settle = absl::GetFlag(FLAGS_restart_settle);
  options.stream.timeout = absl::GetFlag(FLAGS_slow_reader_timeout);
  for (const absl::Status& status :
       {CheckRange("replay_budget_mb", budget_mb, 0, 1 << 20),
        CheckRange("replay_request_kb", request_kb, 0, 1 << 20),
        CheckRange("admission_hold", absl::GetFlag(FLAGS_admission_hold), 1, 1 << 30),
        CheckRange("stream_buffer_kb", stream_kb, 1, 1 << 20),
        CheckRange("max_waiting_mb", waiting_mb, 1, 1 << 20),
        CheckTime("resume_timeout", options.resume_timeout),
        CheckTime("restart_settle", options.restart_settle),
        CheckTime("slow_reader_timeout", options.stream.timeout)}) {
    if (!status.ok()) return status;
  }
  options.replay_budget_bytes = int64_t{budget_mb} << 20;
  options.replay_request_bytes = int64_t{request_kb} << 10;
  options.max_waiting_bytes = int64_t{waiting_mb} << 20;
  options.max_waiting_kv = absl::GetFlag(FLAGS_max_waiting_kv);
  if (!(options.max_waiting_kv >= 0 && options.max_waiting_kv <= 1e9)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max_waiting_kv=", options.max_waiting_kv, ": must be within 0..1e9"));
  }
  absl::StatusOr<TenantLimits> tenants = ParseTenantLimits(absl::GetFlag(FLAGS_tenant_limits));
  if (!tenants.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--tenant_limits: ", tenants.status().message()));
  }
  options.tenant_limits = *std::move(tenants);
  options.stream.buffer_tokens = int64_t{stream_kb} * 1024 / 4;
  return absl::OkStatus();
}

}  // namespace bfio::router
