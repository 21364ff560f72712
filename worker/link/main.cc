// bfio_worker: one or more ranks of a decode group.
#include <unistd.h>

#include <cstdint>
#include <string>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "bfio/v1/config.pb.h"
#include "common/base/shutdown.h"
#include "common/base/spdlog.h"
#include "common/config/command_line.h"
#include "common/config/program.h"
#include "common/net/grpc_log.h"
#include "common/telemetry/log.h"
#include "worker/engine/model/bus_error.h"
#include "worker/link/program_chains.h"
#include "worker/link/worker.h"

ABSL_FLAG(
    std::string, router, "127.0.0.1:50051",
    "HOST:PORT of the router; of several, of which one leads (--election_etcd of the router): a name that "
    "resolves to all, or NUMBER:PORT,NUMBER:PORT");
ABSL_FLAG(std::string, worker_tls_ca, "",
          "worker link: PEM file of the CAs of the router's certificate; empty: plain text");
ABSL_FLAG(std::string, worker_tls_cert, "", "worker link: PEM file of this worker's certificate");
ABSL_FLAG(std::string, worker_tls_key, "", "worker link: PEM file of that certificate's key");
ABSL_FLAG(std::string, worker_id, "", "name of this worker, unique in the router (empty: host:pid)");
ABSL_FLAG(
    std::string, group, "",
    "name of the group that this worker's ranks belong to, at most 64 bytes; empty: the router assigns one");
ABSL_FLAG(std::string, barrier_host, "127.0.0.1",
          "host under which the other workers reach this one's barrier; the star barrier listens there");
ABSL_FLAG(std::string, engine, "sim",
          "sim (takes a step's time, makes no real tokens), cpu (a model on the CPU) or cuda (on GPUs)");
ABSL_FLAG(
    std::string, model, "",
    "cpu and cuda: directory of a checkpoint: config.json and safetensors (Llama, Mistral, Qwen2, Qwen3)");
ABSL_FLAG(uint32_t, device, 0,
          "GPU of the process's first rank, the next ranks have the next ones: of the cuda engine and nccl");
ABSL_FLAG(uint32_t, cpu_threads, 1,
          "cpu engine: threads per rank; ranks x threads should not exceed the cores");
ABSL_FLAG(uint32_t, step_tokens, 512,
          "cpu and cuda: tokens a step computes at most, where prompts are concerned");
ABSL_FLAG(
    std::string, scheduler, "sarathi",
    "which prompt tokens and decodes share a step: sarathi (decodes first, then pieces of prompts), orca "
    "(pieces of prompts first), vllm_v0 (whole prompts alone, else decodes) or faster_transformer (a batch "
    "to its end); the last two need a --token_budget of --max_sequence_tokens");
ABSL_FLAG(std::string, scheduler_order, "fcfs",
          "within prompts and within decodes: fcfs, shortest (least left) or priority");
ABSL_FLAG(
    uint32_t, token_budget, 0,
    "tokens of a step; with --budget_control the most. cpu and cuda: at most --step_tokens (0: that many). "
    "sim: 0 computes every prompt whole in its first step, beside all decodes, without a scheduler");
ABSL_FLAG(std::string, budget_control, "off",
          "adapts the token budget to the requests of late: for the least median e2e, ttft or tpot, or so "
          "that most requests meet their objectives; off: it stays");
ABSL_FLAG(absl::Duration, ttft_objective, absl::ZeroDuration(),
          "--budget_control=objectives: first token within, for requests that say nothing (0: any)");
ABSL_FLAG(absl::Duration, tpot_objective, absl::ZeroDuration(),
          "--budget_control=objectives: a token every, for requests that say nothing (0: any)");
ABSL_FLAG(uint32_t, page_size, 64,
          "cpu and cuda: tokens of a page of the KV cache, a multiple of 16 (cuda: 16, 32 or 64)");
ABSL_FLAG(
    std::string, weight_type, "auto",
    "cpu engine: type of the matrices in memory: fp32, bf16, or auto: bf16 where the checkpoint has it");
ABSL_FLAG(std::string, kv_type, "fp32", "cpu engine: type of the KV cache: fp32 or bf16");
ABSL_FLAG(
    std::string, mlp, "replicated",
    "cpu and cuda: replicated (every rank computes its requests alone) or tp (the ranks of the group share "
    "the MLP out and exchange activations in every layer); the same on all ranks");
ABSL_FLAG(
    double, memory_limit_mb, 0,
    "cpu engine and chains: MiB that weights and KV caches of the process may fill (of the GPU's memory with "
    "--engine=cuda); a model that does not fit is refused. 0: no limit");
ABSL_FLAG(bool, insecure, false,
          "what other machines can reach may be unprotected: --pipeline_listen without encryption or without "
          "asking who calls, and a barrier (--barrier_host) whose secret comes over an unencrypted link");
ABSL_FLAG(std::string, barrier, "star", "star, nccl, or local (all ranks in this process)");
ABSL_FLAG(uint32_t, slots, 72, "requests decoding at once per rank (batch capacity B)");
ABSL_FLAG(
    uint64_t, kv_tokens, 1 << 20,
    "KV capacity per rank, in tokens; left out, the cpu engine takes less where the machine has no memory "
    "for so many");
ABSL_FLAG(uint64_t, max_sequence_tokens, 1 << 18, "largest prompt + output of one request, in tokens");
ABSL_FLAG(uint32_t, ranks_per_process, 1, "ranks this process runs, each with its own engine and stream");
ABSL_FLAG(double, c, bfio::StepCost().c_s, "sim engine: fixed seconds per step");
ABSL_FLAG(double, tl, bfio::StepCost().tl_s_per_token, "sim engine: seconds per resident KV token and step");
ABSL_FLAG(double, prefill_cost, bfio::StepCost().prefill_s_per_token, "sim engine: seconds per prompt token");
ABSL_FLAG(double, jitter, 0, "sim engine: standard deviation of a step's time, relative to it (0..0.3)");
ABSL_FLAG(double, eos_probability, 0, "sim engine: probability that a token ends its sequence (0..1)");
ABSL_FLAG(uint64_t, seed, 1, "sim engine: seed of the jitter");
ABSL_FLAG(absl::Duration, connect_timeout, absl::Seconds(60),
          "give up when no router is found for so long at start");
ABSL_FLAG(absl::Duration, drain_timeout, absl::Seconds(30),
          "on SIGTERM: wait so long for running requests to end");
ABSL_FLAG(
    std::string, step_log, "",
    "CSV file that gets a line per step and rank, for bfio_sim calibrate; empty: none. At half its bound it "
    "becomes PATH.1");
ABSL_FLAG(uint32_t, step_log_mb, 64, "bound of the step log, PATH and PATH.1 together, in MiB");
ABSL_FLAG(std::string, energy_device, "",
          "GPUs whose energy is metered by NVML, separated by commas: PCI bus ids or NVML's indices, one per "
          "rank of "
          "the process (fewer: repeated); empty: none");
ABSL_FLAG(
    std::string, admission, "none",
    "which of the requests placed here may begin where the router lets in more than fits for certain: none "
    "(whoever fits now), watermark:share=W (this share stays free) or kv_feasible (memory holds whatever "
    "they "
    "make); the others go back to the router");
ABSL_FLAG(uint32_t, resume_buffer_mb, 64,
          "MiB per rank for the tokens of resumable requests, which the next router gets if this one dies");
ABSL_FLAG(
    std::string, http_listen, "",
    "HOST:PORT of /metrics and the probes /healthz and /readyz, for everybody who reaches it; empty: none");
ABSL_FLAG(std::string, log_level, "info", "trace, debug, info, warning or error");
ABSL_FLAG(std::string, log_format, "text", "text or json");

namespace {

constexpr char kUsage[] =
    R"(bfio_worker: runs ranks of a decode group: attaches to the router, takes requests, decodes in step with its peers.

  bfio_worker --router=127.0.0.1:50051 --slots=72
  bfio_worker --router=router.example:50051 --barrier_host=$(hostname -f) --ranks_per_process=8
  bfio_worker --engine=cpu --model=DIR --cpu_threads=4 --slots=16 --kv_tokens=65536
  bfio_worker --engine=cpu --model=DIR --memory_limit_mb=6000 --pipeline_listen=127.0.0.1:0
  bfio_worker --engine=cuda --model=DIR --slots=64 --kv_tokens=400000 --barrier=nccl

SIGTERM lets the running requests end, then exits 0; a second signal exits at once.
)";

std::string DefaultId() {
  char host[256] = "localhost";
  gethostname(host, sizeof(host) - 1);
  return absl::StrCat(host, ":", getpid());
}

// Out of range becomes 0 or less, which is refused by name.
template <typename Flag>
int32_t Small(const Flag& flag) {
  return static_cast<int32_t>(absl::GetFlag(flag));
}

template <typename Flag>
absl::StatusOr<bfio::worker::cpu::Storage> StorageOf(const char* name, const Flag& flag) {
  auto storage = bfio::worker::cpu::ParseStorage(absl::GetFlag(flag));
  if (storage.ok()) return storage;
  return absl::InvalidArgumentError(absl::StrCat("--", name, ": ", storage.status().message()));
}

absl::Status SetScheduler(bfio::worker::DecodeOptions& options) {
  options.step_tokens = Small(FLAGS_step_tokens);
  options.scheduler = absl::GetFlag(FLAGS_scheduler);
  options.token_budget = Small(FLAGS_token_budget);
  const auto order = bfio::worker::ParseBatchOrder(absl::GetFlag(FLAGS_scheduler_order));
  if (!order.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--scheduler_order: ", order.status().message()));
  }
  options.order = *order;
  const std::string control = absl::GetFlag(FLAGS_budget_control);
  const double ttft = absl::ToDoubleSeconds(absl::GetFlag(FLAGS_ttft_objective));
  const double tpot = absl::ToDoubleSeconds(absl::GetFlag(FLAGS_tpot_objective));
  if ((ttft > 0 || tpot > 0) != (control == "objectives")) {
    return absl::InvalidArgumentError(
        "--ttft_objective and --tpot_objective go with --budget_control=objectives, which needs one of them");
  }
  if (control == "off") return absl::OkStatus();
  const auto goal = bfio::worker::ParseBudgetGoal(control);
  if (!goal.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--budget_control: ", goal.status().message(), ", and off"));
  }
  options.adapt.emplace();
  options.adapt->goal = *goal;
  options.adapt->ttft_objective_s = ttft;
  options.adapt->tpot_objective_s = tpot;
  return absl::OkStatus();
}

absl::StatusOr<bfio::worker::EngineOptions> EngineFromFlags() {
  bfio::worker::EngineOptions options;
  options.name = absl::GetFlag(FLAGS_engine);
  options.limits.slots = Small(FLAGS_slots);
  options.limits.kv_tokens = static_cast<int64_t>(absl::GetFlag(FLAGS_kv_tokens));
  options.fit_kv = !bfio::FlagWasGiven("kv_tokens");
  options.limits.max_sequence_tokens = static_cast<int64_t>(absl::GetFlag(FLAGS_max_sequence_tokens));
  options.sim.cost = {absl::GetFlag(FLAGS_c), absl::GetFlag(FLAGS_tl), absl::GetFlag(FLAGS_prefill_cost)};
  options.sim.jitter = absl::GetFlag(FLAGS_jitter);
  options.sim.eos_probability = absl::GetFlag(FLAGS_eos_probability);
  options.sim.seed = absl::GetFlag(FLAGS_seed);
  options.model = absl::GetFlag(FLAGS_model);
  options.cpu.threads = Small(FLAGS_cpu_threads);
  if (absl::Status status = SetScheduler(options.cpu.decode); !status.ok()) return status;
  options.cpu.decode.page_tokens = Small(FLAGS_page_size);
  options.cuda.decode = options.cpu.decode;
  const bfio::worker::DecodeOptions& decode = options.cpu.decode;
  if (decode.token_budget > 0) {
    options.sim.plan = {decode.scheduler, decode.order, decode.token_budget, decode.adapt};
  } else if (options.name == "sim" && decode.adapt) {
    return absl::InvalidArgumentError(
        "--budget_control: the sim engine has a budget only with --token_budget, the most it may be");
  }
  options.cuda.device = Small(FLAGS_device);
  const auto weights = StorageOf("weight_type", FLAGS_weight_type);
  if (!weights.ok()) return weights.status();
  options.weights = *weights;
  const auto kv = StorageOf("kv_type", FLAGS_kv_type);
  if (!kv.ok()) return kv.status();
  options.cpu.kv = *kv;
  const std::string mlp = absl::GetFlag(FLAGS_mlp);
  if (mlp != "replicated" && mlp != "tp") {
    return absl::InvalidArgumentError(absl::StrCat("--mlp: '", mlp, "' is neither replicated nor tp"));
  }
  options.cpu.decode.share_mlp = options.cuda.decode.share_mlp = mlp == "tp";
  const double limit_mb = absl::GetFlag(FLAGS_memory_limit_mb);
  if (!(limit_mb >= 0 && limit_mb <= 1e9)) {
    return absl::InvalidArgumentError(absl::StrCat("--memory_limit_mb must be in 0..1e9, not ", limit_mb));
  }
  options.memory_limit_bytes = static_cast<int64_t>(limit_mb * (1 << 20));
  return options;
}

absl::StatusOr<bfio::worker::WorkerOptions> OptionsFromFlags() {
  bfio::worker::WorkerOptions options;
  options.router = absl::GetFlag(FLAGS_router);
  options.tls = {absl::GetFlag(FLAGS_worker_tls_cert), absl::GetFlag(FLAGS_worker_tls_key),
                 absl::GetFlag(FLAGS_worker_tls_ca)};
  options.worker_id = absl::GetFlag(FLAGS_worker_id);
  if (options.worker_id.empty()) options.worker_id = DefaultId();
  options.group = absl::GetFlag(FLAGS_group);
  options.barrier_host = absl::GetFlag(FLAGS_barrier_host);
  auto engine = EngineFromFlags();
  if (!engine.ok()) return engine.status();
  options.engine = *std::move(engine);
  options.barrier = absl::GetFlag(FLAGS_barrier);
  options.insecure = absl::GetFlag(FLAGS_insecure);
  options.ranks_per_process = Small(FLAGS_ranks_per_process);
  options.connect_timeout = absl::GetFlag(FLAGS_connect_timeout);
  options.drain_timeout = absl::GetFlag(FLAGS_drain_timeout);
  options.step_log = absl::GetFlag(FLAGS_step_log);
  options.step_log_bytes = int64_t{absl::GetFlag(FLAGS_step_log_mb)} << 20;
  options.energy_devices = absl::StrSplit(absl::GetFlag(FLAGS_energy_device), ',', absl::SkipEmpty());
  options.resume_buffer_bytes = int64_t{absl::GetFlag(FLAGS_resume_buffer_mb)} << 20;
  const auto admission = bfio::worker::ParseKvAdmission(absl::GetFlag(FLAGS_admission));
  if (!admission.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--admission: ", admission.status().message()));
  }
  options.admission = *admission;
  options.http_listen = absl::GetFlag(FLAGS_http_listen);
  options.parts = bfio::worker::PartServerFromFlags();
  options.version = BFIO_VERSION;
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const bfio::ProgramInfo info{"bfio_worker", BFIO_VERSION, kUsage};
  const auto positional = bfio::InitProgram(argc, argv, info, bfio::v1::WorkerConfig());
  if (!positional.empty()) {
    return bfio::ExitWith(
        info, absl::InvalidArgumentError(absl::StrCat("unexpected argument '", positional[0], "'")));
  }
  absl::Status status =
      bfio::InitLogging(info.name, absl::GetFlag(FLAGS_log_level), absl::GetFlag(FLAGS_log_format));
  if (!status.ok()) return bfio::ExitWith(info, status);
  const auto options = OptionsFromFlags();
  if (!options.ok()) return bfio::ExitWith(info, options.status());
  bfio::InstallGrpcLog();
  bfio::ShutdownSignal::Install();
  bfio::worker::ExitOnBusError("bfio_worker");
  status = bfio::worker::RunWorker(*options);
  if (!status.ok()) return bfio::ExitWith(info, status);
  return 0;
}
