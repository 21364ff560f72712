// bfio_worker: one or more ranks of a decode group.
#include "common/base/shutdown.h"
#include "common/base/version.h"
#include "common/config/program.h"
#include "common/net/grpc_log.h"
#include "common/telemetry/log.h"
#include "worker/engine/model/mapped_file.h"
#include "worker/link/flags.h"
#include "worker/link/program_chains.h"

namespace {

constexpr char kUsage[] =
    R"(bfio_worker runs ranks of a decode group. It connects to the router, gets requests and decodes in step with
the other workers.

  bfio_worker --router=127.0.0.1:50051 --slots=72
  bfio_worker --router=router.example:50051 --barrier_host=$(hostname -f) --ranks_per_process=8
  bfio_worker --engine=cpu --model=DIR --cpu_threads=4 --slots=16 --kv_tokens=65536
  bfio_worker --engine=cuda --model=DIR --slots=64 --kv_tokens=400000 --barrier=nccl

On SIGTERM it lets the running requests end (--drain_timeout) and exits with 0. A second signal ends it at once.
)";

}  // namespace

int main(int argc, char** argv) {
  const bfio::ProgramInfo info{"bfio_worker", bfio::Version(), kUsage};
  bfio::worker::WorkerSettings settings;
  bfio::OptionTable table;
  bfio::worker::AddWorkerOptions(table, settings);
  const auto part_server = bfio::worker::AddPartServerOptions(table);
  bfio::InitWithoutArguments(argc, argv, info, table);
  absl::Status status = bfio::InitLogging(info.name, settings.log_level, settings.log_format);
  if (!status.ok()) return bfio::ExitWith(info, status);
  status = bfio::worker::FinishWorkerOptions(table, settings);
  if (!status.ok()) return bfio::ExitWith(info, status);
  settings.worker.parts = part_server();
  settings.worker.version = bfio::Version();
  bfio::InstallGrpcLog();
  bfio::ShutdownSignal::Install();
  bfio::worker::ExitOnBusError("bfio_worker");
  status = bfio::worker::RunWorker(settings.worker);
  bfio::FlushLog();  // the reason is the last line
  return status.ok() ? 0 : bfio::ExitWith(info, status);
}
