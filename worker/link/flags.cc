#include "worker/link/flags.h"

#include <unistd.h>

#include <limits>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace bfio::worker {
namespace {

const Within kSeconds(0, 3600);
const Within kTokens(1, static_cast<double>(int64_t{1} << 40));

// Bound of --group in bytes: the router refuses longer names.
constexpr size_t kMaxGroupBytes = 64;

std::string DefaultId() {
  char host[256] = "localhost";
  gethostname(host, sizeof(host) - 1);
  return absl::StrCat(host, ":", getpid());
}

// "sarathi" or "sarathi:shortest".
absl::StatusOr<std::pair<std::string, BatchOrder>> ParseScheduler(const std::string& text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  absl::StatusOr<BatchOrder> order = BatchOrder::kFcfs;
  if (absl::StrContains(text, ':')) order = ParseBatchOrder(parts.second);
  if (!order.ok()) return order.status();
  BFIO_RETURN_IF_ERROR(BatchScheduler::Create(parts.first).status());
  return std::pair(parts.first, *order);
}

// "off", "e2e", "ttft", "tpot" or "objectives:ttft=500ms,tpot=50ms".
absl::StatusOr<std::optional<BudgetTunerOptions>> ParseBudgetControl(const std::string& text) {
  if (text == "off") return std::nullopt;
  BudgetTunerOptions options;
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  const absl::StatusOr<BudgetGoal> goal = ParseBudgetGoal(parts.first);
  if (!goal.ok()) return absl::InvalidArgumentError(absl::StrCat(goal.status().message(), ", and off"));
  options.goal = *goal;
  if (options.goal != BudgetGoal::kObjectives && !absl::StrContains(text, ':')) return options;
  for (const absl::string_view part : absl::StrSplit(parts.second, ',')) {
    const std::pair<absl::string_view, absl::string_view> limit =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    double* const seconds = limit.first == "ttft"   ? &options.ttft_objective_s
                            : limit.first == "tpot" ? &options.tpot_objective_s
                                                    : nullptr;
    absl::Duration time;
    if (options.goal != BudgetGoal::kObjectives || seconds == nullptr ||
        !absl::ParseDuration(limit.second, &time) || time <= absl::ZeroDuration() ||
        time == absl::InfiniteDuration()) {
      return absl::InvalidArgumentError(
          "must be off, e2e, ttft, tpot or objectives:ttft=TIME,tpot=TIME (one of the two suffices)");
    }
    *seconds = absl::ToDoubleSeconds(time);
  }
  return options;
}

void AddLinks(OptionTable& table, WorkerOptions& o) {
  table.Add("router", &o.router,
            "HOST:PORT of the router. With several routers (their --election_etcd): a name that resolves to "
            "all of them, or IP:PORT,IP:PORT");
  table.AddParsed("worker_tls", &o.tls, "",
                  "worker link: cert=FILE,key=FILE,ca=FILE, PEM: the CAs of the router's certificate, and "
                  "this worker's certificate and its key where the router requires them. Empty: plain text",
                  ParseTlsFiles);
  table.Add("worker_id", &o.worker_id, "name of this worker, unique in the router; empty: host:pid");
  table.Add(
      "group", &o.group,
      "name of the group that this worker's ranks belong to, at most 64 bytes; empty: the router assigns "
      "one");
  table.Add("barrier", &o.barrier, "star, star_tls (encrypted), nccl, or local (all ranks in this process)");
  table.Add("barrier_host", &o.barrier_host,
            "host under which the other workers reach this one's barrier; the star barrier listens there");
  table.Add(
      "insecure", &o.insecure,
      "permit unprotected ports that other machines can reach: a barrier (--barrier_host) whose secret comes "
      "over an unencrypted link, and the port of a server of chains without encryption or authentication");
  table.Add("http_listen", &o.http_listen,
            "HOST:PORT of /metrics and the probes /healthz and /readyz, unauthenticated; empty: none");
  table.Add("ranks_per_process", &o.ranks_per_process, Within(1, 256),
            "ranks this process runs, each with its own engine and stream");
  table.Add("connect_timeout", &o.connect_timeout, Within(absl::Milliseconds(1), absl::Hours(24)),
            "how long to try to reach a router at the start");
  table.Add("drain_timeout", &o.drain_timeout, Within(absl::ZeroDuration(), absl::Hours(24)),
            "on SIGTERM: how long running requests may take to end");
  table.Add("step_log", &o.step_log,
            "CSV file that gets a line per step and rank, for bfio_sim calibrate; empty: none. At half its "
            "bound it becomes PATH.1");
  table.AddScaled("step_log_mb", static_cast<double>(o.step_log_bytes >> 20), Within(1, 1 << 20),
                  "bound of the step log, PATH and PATH.1 together, in MiB",
                  [&o](double mb) { o.step_log_bytes = static_cast<int64_t>(mb * (1 << 20)); });
  table.Add(
      "energy_device", &o.energy_devices,
      "GPUs whose energy is metered by NVML, separated by commas: PCI bus ids or NVML's indices, one per "
      "rank of the process (fewer: repeated); empty: none");
}

void AddEngine(OptionTable& table, WorkerSettings& settings) {
  EngineOptions& o = settings.worker.engine;
  table.Add("engine", &o.name,
            "sim (sleeps for the modelled step time instead of computing), cpu (a model on the CPU) or cuda "
            "(on GPUs)");
  table.Add("model", &o.model,
            "cpu and cuda: directory of a checkpoint: config.json and safetensors (Llama, Mistral, Qwen2, "
            "Qwen3)");
  table.Add(
      "device", &o.cuda.device, Within(0, 1024),
      "cuda engine and nccl barrier: GPU of the process's first rank; the next ranks use the next GPUs");
  table.Add("cpu_threads", &o.cpu.threads, Within(1, 256),
            "cpu engine: threads per rank; ranks x threads should not exceed the cores");
  table.AddParsed("kv_type", &o.cpu.kv, "fp32", "cpu engine: type of the KV cache: fp32 or bf16",
                  cpu::ParseStorage);
  table.AddChoice<bool>(
      "mlp", &settings.decode.share_mlp, {{"replicated", false}, {"tp", true}},
      "cpu and cuda: replicated (every rank computes its requests alone) or tp (the ranks of the group shard "
      "the MLP and exchange activations in every layer); the same on all ranks");
  table.AddScaled(
      "memory_limit_mb", 0, Within(0, 1e9),
      "cpu engine and chains: MiB that weights and KV caches of the process may fill (of the GPU's "
      "memory with --engine=cuda); a model that does not fit is refused. 0: no limit",
      [&o](double mb) { o.memory_limit_bytes = static_cast<int64_t>(mb * (1 << 20)); });
  table.Add("slots", &o.limits.slots, Within(1, 1 << 16),
            "slots: concurrent requests per rank, batch capacity B (vLLM: max_num_seqs)");
  table.Add("kv_tokens", &o.limits.kv_tokens, kTokens,
            "KV capacity per rank, in tokens; without the flag the cpu and cuda engines take fewer where the "
            "memory of the machine or GPU does not suffice");
  table.Add("max_sequence_tokens", &o.limits.max_sequence_tokens, kTokens,
            "largest prompt + output of one request, in tokens");
  table.Add("c", &o.sim.cost.c_s, kSeconds, "sim engine: fixed seconds per step");
  table.Add("tl", &o.sim.cost.tl_s_per_token, kSeconds, "sim engine: seconds per resident KV token and step");
  table.Add("prefill_cost", &o.sim.cost.prefill_s_per_token, kSeconds,
            "sim engine: seconds per prompt token");
  table.Add("vocab", &o.sim.vocabulary, Within(4, 1 << 30),
            "sim engine: generated tokens are below it; set it to the size of the tokenizer's vocabulary");
  table.Add("eos_probability", &o.sim.eos_probability, Within(0, 1),
            "sim engine: probability that a token ends its sequence, below 1");
  table.Add("ends_by_seed", &o.sim.ends_by_seed,
            "sim engine: the sampling seed of a request gives its number of tokens, for bfio_loadgen "
            "--max_new_tokens; the router does not get the length in advance");
}

void AddSteps(OptionTable& table, WorkerSettings& settings) {
  DecodeOptions& o = settings.decode;
  table.AddParsed(
      "scheduler", &settings.scheduler, "sarathi",
      "which prompt tokens and decodes share a step: sarathi (decodes first, then chunks of prompts), orca "
      "(chunks of prompts first), vllm_v0 (whole prompts alone, else decodes) or faster_transformer (a batch "
      "to its end); the last two need a --token_budget of --max_sequence_tokens. sarathi:ORDER: the order "
      "within prompts and within decodes, fcfs, shortest (least left), priority or urgency (the "
      "router's: priority, then age, of an agent's call that of the agent)",
      ParseScheduler);
  table.Add(
      "token_budget", &o.token_budget, Within(0, std::numeric_limits<int32_t>::max()),
      "token budget of a step (vLLM: max_num_batched_tokens); with --budget_control its upper bound. 0: 512 "
      "with cpu and cuda; with sim every prompt is computed whole in its first step, without a scheduler");
  table.AddParsed("budget_control", &o.adapt, "off",
                  "adapts the token budget to the recent requests: for the least median e2e, ttft or tpot, "
                  "or so that most requests meet their objectives (objectives:ttft=TIME,tpot=TIME, the "
                  "defaults of requests without objectives). off: the budget is fixed",
                  ParseBudgetControl);
  table.AddParsed(
      "admission", &settings.worker.admission, "none",
      "which placed requests may begin, where the router admits more than certainly fits: none "
      "(each request that fits now), watermark:share=W (this share stays free), kv_feasible (memory "
      "suffices if all reach their limits) or mc_sf (the same, the shortest limits first, and none "
      "after the first that does not fit; none goes before one that has waited 256 steps, "
      "mc_sf:most=K); the others go back to the router",
      ParseKvAdmission);
}

}  // namespace

void AddWorkerOptions(OptionTable& table, WorkerSettings& settings) {
  AddLinks(table, settings.worker);
  AddEngine(table, settings);
  AddSteps(table, settings);
  table.Add("log_level", &settings.log_level, "trace, debug, info, warning or error");
  table.Add("log_format", &settings.log_format, "text or json");
}

absl::Status FinishWorkerOptions(const OptionTable& table, WorkerSettings& settings) {
  WorkerOptions& o = settings.worker;
  if (o.worker_id.empty()) o.worker_id = DefaultId();
  if (o.group.size() > kMaxGroupBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("--group must have at most ", kMaxGroupBytes, " bytes, not ", o.group.size()));
  }
  o.engine.fit_kv = !table.given("kv_tokens");
  DecodeOptions& decode = settings.decode;
  std::tie(decode.scheduler, decode.order) = settings.scheduler;
  if (decode.token_budget > 0) {
    o.engine.sim.plan = {decode.scheduler, decode.order, decode.token_budget, decode.adapt};
    decode.step_tokens = decode.token_budget;
  } else if (o.engine.name == "sim" && decode.adapt) {
    return absl::InvalidArgumentError(
        "--budget_control: the sim engine has a budget only with --token_budget, the most it may be");
  }
  o.engine.cpu.decode = o.engine.cuda.decode = decode;
  return absl::OkStatus();
}

}  // namespace bfio::worker
