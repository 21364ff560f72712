#include "worker/link/flags.h"

#include <unistd.h>

#include <limits>

#include "absl/strings/str_cat.h"

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

constexpr char kSimDefaults[] = "prefill_cost=0,vocab=32000,eos_probability=0";

// Sets in `sim` what the text names.
absl::StatusOr<SimOptions> ParseSim(const std::string& text, SimOptions sim) {
  OptionTable items;
  items.Add("prefill_cost", &sim.cost.prefill_s_per_token, kSeconds, "");
  items.Add("vocab", &sim.vocabulary, Within(4, 1 << 30), "");
  items.Add("eos_probability", &sim.eos_probability, Within(0, 1), "");
  items.Add("ends_by_seed", &sim.ends_by_seed, "");
  BFIO_RETURN_IF_ERROR(items.ReadItems(text));
  return sim;
}

void AddLinks(OptionTable& table, WorkerOptions& o) {
  table.Add("router", &o.router,
            "HOST:PORT of the router. With several routers (their --election_etcd): a name that resolves to "
            "all of them, or IP:PORT,IP:PORT");
  table.AddParsed(
      "worker_tls", &o.tls, "",
      "cert=FILE,key=FILE,ca=FILE (PEM) for the link to the router: the CAs of the router's certificate and, "
      "if the router requires a client certificate, this worker's certificate and key. Empty: no TLS",
      ParseTlsFiles);
  table.Add("worker_id", &o.worker_id, "name of this worker, unique in the router; empty: host:pid");
  table.Add(
      "group", &o.group,
      "name of the group that this worker's ranks belong to, at most 64 bytes; empty: the router assigns "
      "one");
  table.Add("barrier", &o.barrier, "star, star_tls (encrypted) or nccl");
  table.Add("barrier_host", &o.barrier_host,
            "host at which the other workers reach the barrier of this one; the star barrier listens on it");
  table.Add("insecure", &o.insecure,
            "permit unprotected ports that other machines can reach: a barrier (--barrier_host) whose secret "
            "comes over an unencrypted router link, and the port of a server of chains without encryption "
            "or authentication");
  table.Add(
      "http_listen", &o.http_listen,
      "HOST:PORT for /metrics and the probes /healthz and /readyz, without authentication; empty: none");
  table.Add("ranks_per_process", &o.ranks_per_process, Within(1, 256),
            "number of ranks in this process, each with its own engine and stream to the router");
  table.Add("connect_timeout", &o.connect_timeout, Within(absl::Milliseconds(1), absl::Hours(24)),
            "at startup: time to try to reach a router before the worker exits");
  table.Add("drain_timeout", &o.drain_timeout, Within(absl::ZeroDuration(), absl::Hours(24)),
            "on SIGTERM: time that running requests get to end");
  table.Add("step_log", &o.step_log,
            "CSV file with a line per step and rank; empty: none. At 32 MiB it is "
            "renamed to PATH.1");
  table.Add("energy_device", &o.energy_devices,
            "GPUs whose energy NVML measures, separated by commas: PCI bus ids or NVML indices, one per rank "
            "of the process (a shorter list is repeated); empty: none");
}

void AddEngine(OptionTable& table, WorkerSettings& settings) {
  EngineOptions& o = settings.worker.engine;
  table.Add("engine", &o.name,
            "sim (sleeps for the modelled step time instead of computing), cpu (runs a model on the CPU) or "
            "cuda (runs a model on GPUs)");
  table.Add("model", &o.model,
            "cpu and cuda engines: directory of a checkpoint with config.json and safetensors files (Llama, "
            "Mistral, Qwen2, Qwen3)");
  table.Add("cpu_threads", &o.cpu.threads, Within(1, 256),
            "cpu engine: threads per rank; ranks x threads should not exceed the number of cores");
  table.AddScaled("memory_limit_mb", 0, Within(0, 1e9),
                  "cpu engine, and cuda engine on a server of chains (GPU memory): MiB that weights and KV "
                  "cache of the process may use; a model that does not fit is rejected. 0: no limit",
                  [&o](double mb) { o.memory_limit_bytes = static_cast<int64_t>(mb * (1 << 20)); });
  table.Add(
      "slots", &o.limits.slots, Within(1, 1 << 16),
      "slots: maximum number of concurrent requests per rank, the batch capacity B (vLLM: max_num_seqs)");
  table.Add("kv_tokens", &o.limits.kv_tokens, kTokens,
            "KV capacity per rank, in tokens. If the flag is not given, the cpu and cuda engines lower the "
            "default to what fits into the memory of the machine or GPU");
  table.Add("max_sequence_tokens", &o.limits.max_sequence_tokens, kTokens,
            "largest prompt + output of one request, in tokens");
  table.Add("c", &o.sim.cost.c_s, kSeconds, "sim engine: fixed seconds per step");
  table.Add("tl", &o.sim.cost.tl_s_per_token, kSeconds, "sim engine: seconds per resident KV token and step");
  table.AddParsed(
      "sim", &o.sim, kSimDefaults,
      "sim engine: settings separated by commas, prefill_cost=S (seconds per prompt token), vocab=N "
      "(generated token ids are below it, as in the tokenizer), eos_probability=P (that a token ends "
      "its sequence, below 1) and ends_by_seed (the sampling seed of a request sets its number of "
      "output tokens, which the router then does not get in advance: bfio_loadgen --max_new_tokens "
      "sends such seeds)",
      [&o](const std::string& text) { return ParseSim(text, o.sim); });
}

void AddSteps(OptionTable& table, WorkerSettings& settings) {
  DecodeOptions& o = settings.decode;
  table.Add(
      "token_budget", &o.token_budget, Within(0, std::numeric_limits<int32_t>::max()),
      "token budget: maximum tokens per step (vLLM: max_num_batched_tokens). 0: 512 with the cpu and cuda "
      "engines; with sim every prompt is computed whole in its first step");
  table.Add(
      "kv_watermark", &settings.worker.kv_watermark, Within(0, 0.99),
      "share of the KV cache that stays free when a request starts whose KV grows on demand (the router's "
      "--admission is not none); a request that would leave less returns to the router");
}

}  // namespace

void AddWorkerOptions(OptionTable& table, WorkerSettings& settings) {
  AddLinks(table, settings.worker);
  AddEngine(table, settings);
  AddSteps(table, settings);
  table.Add("log_level", &settings.log_level, "trace, debug, info, warning or error");
  table.Add("log_format", &settings.log_format, "text or json");
  table.Group("Simulated engine (--engine=sim)", {"c", "sim", "tl"});
  table.Group("Experimental", {"pipeline_listen", "pipeline_tls"});
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
  o.engine.sim.token_budget = decode.token_budget;
  if (decode.token_budget > 0) decode.step_tokens = decode.token_budget;
  o.engine.cpu.decode = o.engine.cuda.decode = decode;
  return absl::OkStatus();
}

}  // namespace bfio::worker
