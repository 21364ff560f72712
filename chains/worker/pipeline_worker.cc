#include "chains/worker/pipeline_worker.h"

#include <deque>
#include <functional>
#include <thread>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "bfio/v1/pipeline.grpc.pb.h"
#include "chains/pipeline/stage.h"
#include "common/base/address.h"
#include "common/base/annotated.h"
#include "common/base/backoff.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/shutdown.h"
#include "common/base/spdlog.h"
#include "common/base/status_macros.h"
#include "common/net/channel.h"
#include "common/net/connection_listener.h"
#include "common/net/connection_wait.h"
#include "common/net/exposure.h"
#include "common/net/status.h"
#include "grpcpp/grpcpp.h"
#include "worker/engine/cpu/cpu_engine.h"
#include "worker/link/rank.h"
#include "worker/link/router_link.h"

namespace bfio::worker {

// A server's stream to the router's ChainPool. One Join stream at a time; messages are passed to the owner's
// sinks. The owner opens it again after a loss. Threads: Open, Send and Close from the owner's thread; a
// reader thread per stream calls the sinks.
class PoolLink {
 public:
  struct Sinks {
    std::function<void(v1::PoolMessage)> on_message;
    // The stream has ended; called once per Open.
    std::function<void(const absl::Status&)> on_end;
  };

  PoolLink(std::shared_ptr<grpc::Channel> channel, Sinks sinks);
  ~PoolLink() { Close(); }

  // Opens a stream; true when the router is reached within `timeout`. REQUIRES: no stream is open.
  bool Open(absl::Duration timeout);
  // Blocks while the router does not read, as long as keepalive keeps the connection. Messages to a stream
  // that has ended are lost; on_end has been or will be called.
  void Send(const v1::ServerMessage& message);
  // Ends the stream and waits for its reader.
  void Close();

 private:
  using Stream = grpc::ClientReaderWriter<v1::ServerMessage, v1::PoolMessage>;

  const std::shared_ptr<grpc::Channel> channel_;
  const Sinks sinks_;
  const std::unique_ptr<v1::ChainPool::Stub> stub_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<Stream> stream_;
  std::thread reader_;
};

PoolLink::PoolLink(std::shared_ptr<grpc::Channel> channel, Sinks sinks)
    : channel_(std::move(channel)), sinks_(std::move(sinks)), stub_(v1::ChainPool::NewStub(channel_)) {}

bool PoolLink::Open(absl::Duration timeout) {
  const absl::Time deadline = MonotonicNow() + timeout;
  for (ConnectionWait wait(channel_); !wait.Connected();) {
    if (MonotonicNow() >= deadline) return false;
    absl::SleepFor(wait.pause());
  }
  context_ = std::make_unique<grpc::ClientContext>();
  stream_ = stub_->Join(context_.get());
  reader_ = std::thread([this] {
    v1::PoolMessage message;
    while (stream_->Read(&message)) sinks_.on_message(std::move(message));
    sinks_.on_end(FromGrpcStatus(stream_->Finish()));
  });
  return true;
}

void PoolLink::Send(const v1::ServerMessage& message) {
  if (stream_ != nullptr) stream_->Write(message);
}

void PoolLink::Close() {
  if (stream_ == nullptr) return;
  context_->TryCancel();
  reader_.join();
  stream_.reset();
  context_.reset();
}

namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr absl::Duration kPoolConnectSlice = absl::Milliseconds(500);
// Time spent on measuring a block before the server joins the pool.
constexpr absl::Duration kTrial = absl::Milliseconds(200);
// Calls that a neighbour may have at once: one for each chain.
constexpr int kMostCalls = 256;
// Bound of what neighbours have sent and gRPC has not passed on. Beyond it gRPC ends streams of any of them.
constexpr size_t kMostUnreadBytes = size_t{256} << 20;

struct Broken {
  uint64_t chain;
  absl::Status why;
};
struct Ended {
  absl::Status why;
};
using Event = std::variant<v1::PoolMessage, Broken, Ended>;

// Events for the one thread that handles them. Bounded by their sources: a message or two per chain, and the
// router's messages.
class Mailbox {
 public:
  void Post(Event event) {
    MutexLock lock(&mutex_);
    events_.push_back(std::move(event));
  }
  std::deque<Event> TakeWithin(absl::Duration timeout) {
    MutexLock lock(&mutex_);
    const auto any = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !events_.empty(); };
    mutex_.AwaitWithTimeout(absl::Condition(&any), timeout);
    return std::exchange(events_, {});
  }

 private:
  Mutex mutex_;
  std::deque<Event> events_ ABSL_GUARDED_BY(mutex_);
};

// What the servers of one chain must have in common.
std::string SignatureOf(const WorkerOptions& options, const Model& model) {
  const ModelConfig& config = model.config();
  // Parts of a step are passed between servers, so page size and rows must be equal, too.
  return absl::StrCat(options.engine.name, ":", FamilyName(config.family), ":", config.layers, "x",
                      config.hidden, ":", options.engine.cpu.decode.page_tokens, "/",
                      options.engine.cpu.decode.step_tokens, ":", DigestOf(options.engine, model).Hex());
}

absl::StatusOr<std::unique_ptr<PartSource>> SourceOf(const EngineOptions& engine,
                                                     std::shared_ptr<const Model> model) {
  if (engine.name == "cuda") {
    return MakeCudaParts(engine.cuda.device, std::move(model),
                         [](const std::string& text) { spdlog::info("{}", text); });
  }
  return std::make_unique<CpuParts>(std::move(model), engine.weights, engine.cpu);
}

class Member {
 public:
  Member(const WorkerOptions& options, const PipelineOptions& pipeline, std::shared_ptr<const Model> model,
         PartSource* source, std::string address, PassService* service, std::shared_ptr<grpc::Channel> router,
         const BlockTime& time, MakeHead make_rank)
      : options_(options),
        model_(std::move(model)),
        bytes_(source->bytes()),
        address_(std::move(address)),
        time_(time),
        host_({options_, pipeline, model_->config(), source, service, ChannelCredentials(pipeline.tls),
               std::move(make_rank),
               [this](uint64_t chain, const absl::Status& why) {
                 mailbox_.Post(Broken{chain, why});
               }}),
        link_(std::move(router), {[this](v1::PoolMessage message) { mailbox_.Post(std::move(message)); },
                                  [this](const absl::Status& why) { mailbox_.Post(Ended{why}); }}) {}

  absl::Status Run() {
    const absl::Time give_up = MonotonicNow() + options_.connect_timeout;
    while (true) {
      if (ShutdownSignal::Requested() && !leaving_.has_value()) Leave();
      if (leaving_.has_value() && (!host_.HasHeads() || MonotonicNow() >= *leaving_)) break;
      if (!joined_ && !leaving_.has_value() && MonotonicNow() >= next_try_) Join();
      if (!ever_joined_ && MonotonicNow() >= give_up) {
        return absl::UnavailableError(
            absl::StrCat("no router at ", options_.router,
                         " within --connect_timeout=", absl::FormatDuration(options_.connect_timeout)));
      }
      for (Event& event : mailbox_.TakeWithin(kTick)) {
        if (absl::Status status = Handle(event); !status.ok()) return status;
      }
    }
    return absl::OkStatus();
  }

 private:
  void Join() {
    next_try_ = MonotonicNow() + kPoolConnectSlice;
    if (!link_.Open(kPoolConnectSlice)) return;
    joined_ = ever_joined_ = true;
    v1::ServerMessage message;
    v1::ServerHello* hello = message.mutable_hello();
    hello->set_server_id(options_.worker_id);
    hello->set_pipeline_address(address_);
    hello->set_memory_bytes(static_cast<uint64_t>(options_.engine.memory_limit_bytes));
    hello->set_blocks(static_cast<uint32_t>(model_->config().layers));
    hello->set_block_bytes(static_cast<uint64_t>(bytes_.block));
    hello->set_ends_bytes(static_cast<uint64_t>(bytes_.ends));
    hello->set_kv_token_bytes(static_cast<uint64_t>(bytes_.kv_token));
    hello->set_model(SignatureOf(options_, *model_));
    hello->set_page_tokens(static_cast<uint32_t>(options_.engine.cpu.decode.page_tokens));
    hello->set_max_positions(static_cast<uint64_t>(model_->config().max_positions));
    hello->set_version(options_.version);
    hello->set_block_step_s(time_.step_s);
    hello->set_block_row_s(time_.row_s);
    hello->set_server_instance(instance_);
    hello->set_stream(++streams_);
    for (v1::ChainStage& stage : host_.stages()) *hello->add_stages() = std::move(stage);
    link_.Send(message);
  }

  // Drains the heads here and ends other parts at once.
  void Leave() {
    spdlog::info("{}: leaving the pool of chains", options_.worker_id);
    leaving_ = MonotonicNow() + (host_.Leave("signal") ? options_.drain_timeout : absl::ZeroDuration());
  }

  absl::Status Handle(Event& event) {
    if (auto* message = std::get_if<v1::PoolMessage>(&event)) {
      Obey(*message);
    } else if (auto* broken = std::get_if<Broken>(&event)) {
      OnBroken(*broken);
    } else {
      link_.Close();
      joined_ = false;
      const absl::Status& why = std::get<Ended>(event).why;
      if (absl::IsInvalidArgument(why) || absl::IsUnimplemented(why) || absl::IsPermissionDenied(why)) {
        return absl::Status(why.code(), absl::StrCat("the router at ", options_.router,
                                                     " refuses this server: ", why.message()));
      }
      if (absl::IsFailedPrecondition(why)) {
        const absl::Duration pause = refusals_.Next();
        next_try_ = MonotonicNow() + pause;
        spdlog::warn("{}: the router at {} refuses this server: {}; retrying in {}", options_.worker_id,
                     options_.router, std::string(why.message()),
                     absl::FormatDuration(absl::Trunc(pause, absl::Milliseconds(100))));
        return absl::OkStatus();
      }
      spdlog::warn("{}: lost the stream to the router: {}", options_.worker_id, why.ToString());
    }
    return absl::OkStatus();
  }

  void Obey(const v1::PoolMessage& message) {
    refusals_.Reset();
    if (message.has_stage()) {
      const uint64_t chain = message.stage().chain();
      const absl::Status loaded = leaving_.has_value() ? absl::UnavailableError("the server is shutting down")
                                                       : host_.Load(message.stage());
      if (!loaded.ok()) spdlog::error("chain {}: cannot load its blocks: {}", chain, loaded.ToString());
      v1::ServerMessage reply;
      reply.mutable_ready()->set_chain(chain);
      reply.mutable_ready()->set_error(loaded.ok() ? "" : std::string(loaded.message()));
      link_.Send(reply);
    } else if (message.has_start()) {
      const absl::Status started = host_.Start(message.start().chain());
      if (!started.ok()) OnBroken({message.start().chain(), started});
    } else if (message.has_drop()) {
      spdlog::warn("chain {}: ended by the router: {}", message.drop().chain(), message.drop().reason());
      host_.Drop(message.drop().chain());
    }
  }

  void OnBroken(const Broken& broken) {
    if (!host_.Has(broken.chain)) return;
    spdlog::warn("chain {}: failed: {}", broken.chain, std::string(broken.why.message()));
    host_.Drop(broken.chain);
    v1::ServerMessage message;
    message.mutable_broken()->set_chain(broken.chain);
    message.mutable_broken()->set_reason(std::string(broken.why.message()));
    if (joined_) link_.Send(message);
  }

  const WorkerOptions& options_;
  const std::shared_ptr<const Model> model_;
  const ModelBytes bytes_;
  const std::string address_;
  const BlockTime time_;
  // Outlives the threads that post to it.
  Mailbox mailbox_;
  ChainHost host_;
  PoolLink link_;
  // Identifier of this process, and the number of its streams to the pool.
  const uint64_t instance_ = NewInstance();
  uint64_t streams_ = 0;
  bool joined_ = false;
  bool ever_joined_ = false;
  absl::Time next_try_ = absl::InfinitePast();
  Backoff refusals_{kFirstRefusal, kLastRefusal, std::hash<std::string>()(options_.worker_id)};
  // The deadline for leaving, once a signal has arrived.
  std::optional<absl::Time> leaving_;
};

}  // namespace

absl::Status PipelineWorker::Check(const WorkerOptions& options) const {
  BFIO_ASSIGN_OR_RETURN(
      const Address address,
      Annotated("--pipeline_listen", ParseAddress(pipeline_.listen, /*port_may_be_0=*/true)));
  if (pipeline_.address.empty() && (address.host == "0.0.0.0" || address.host == "::")) {
    return absl::InvalidArgumentError(absl::StrCat("--pipeline_listen=", pipeline_.listen,
                                                   " is a wildcard address; add address=HOST:PORT, at which "
                                                   "other servers reach this one"));
  }
  if (!pipeline_.address.empty()) {
    const auto other = Annotated("--pipeline_listen: address", ParseAddress(pipeline_.address));
    if (!other.ok()) return other.status();
  }
  if (options.engine.name != "cpu" && options.engine.name != "cuda") {
    return absl::InvalidArgumentError("--pipeline_listen requires --engine=cpu or --engine=cuda");
  }
  if (options.ranks_per_process != 1) {
    return absl::InvalidArgumentError("--pipeline_listen requires --ranks_per_process=1");
  }
  if (options.engine.memory_limit_bytes <= 0) {
    return absl::InvalidArgumentError(
        "--pipeline_listen requires --memory_limit_mb, the memory that weights and KV cache may use");
  }
  for (const TlsEnd end : {TlsEnd::kServer, TlsEnd::kClient}) {
    BFIO_RETURN_IF_ERROR(CheckTlsFiles(pipeline_.tls, "pipeline_tls", end));
  }
  if (options.insecure) return absl::OkStatus();
  return CheckExposure(address, {"pipeline_listen", "pipeline_tls", "--pipeline_tls=ca=FILE",
                                 pipeline_.tls.enabled(), !pipeline_.tls.ca.empty()});
}

absl::Status PipelineWorker::Run(const WorkerOptions& options, std::shared_ptr<grpc::Channel> router,
                                 MakePartRank make_rank) const {
  if (options.engine.name == "cuda") {
    // Checked before the model is loaded, which takes minutes.
    BFIO_RETURN_IF_ERROR(Annotated("--engine=cuda", CheckCudaDevice(options.engine.cuda.device)));
  }
  BFIO_ASSIGN_OR_RETURN(auto model, Annotated("--model", LoadModel(options.engine.model)));
  BFIO_ASSIGN_OR_RETURN(Address address, ParseAddress(pipeline_.listen, /*port_may_be_0=*/true));
  BFIO_ASSIGN_OR_RETURN(auto listener, Annotated("--pipeline_listen", ConnectionListener::Bind(address)));
  PassService service;
  service.set_on_accepted([raw = listener.get()](const std::string& peer) { raw->Authenticated(peer); });
  service.first_messages()->set_received(
      [raw = listener.get()](const std::string& peer) { return raw->Received(peer); });
  grpc::ServerBuilder builder;
  ConfigureServer(builder, kMostCalls);
  builder.SetMaxReceiveMessageSize(kMaxPassBytes);
  builder.SetResourceQuota(grpc::ResourceQuota(pipeline_.listen).Resize(kMostUnreadBytes));
  listener->AddTo(builder, ServerCredentials(pipeline_.tls));
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return absl::InternalError("the gRPC server failed to start");
  address.port = listener->port();
  const std::string reached = pipeline_.address.empty() ? address.ToString() : pipeline_.address;
  spdlog::info("{}: listening for chains at {}", options.worker_id, reached);
  const std::shared_ptr<const Model> shared = std::move(model);
  auto source = SourceOf(options.engine, shared);
  if (!source.ok()) return source.status();
  auto time = MeasureBlock(**source, options.engine.cpu.decode, kTrial);
  if (!time.ok()) return time.status();
  spdlog::info("{}: measured time of a block: {:.3g} ms per step plus {:.3g} ms per further row",
               options.worker_id, 1e3 * time->step_s, 1e3 * time->row_s);
  // From here on every path must stop the listener again.
  listener->Serve();
  absl::Status status;
  {
    const std::string digest = DigestOf(options.engine, *shared).Hex();
    const MakeHead make_head = [&](const v1::ChainStage& stage, std::unique_ptr<Engine> engine) {
      return make_rank({absl::StrCat(stage.chain()), digest, stage.service_s(), std::move(engine)});
    };
    Member member(options, pipeline_, shared, source->get(), reached, &service, std::move(router), *time,
                  make_head);
    status = member.Run();
  }
  listener->Stop();
  server->Shutdown(absl::ToChronoTime(absl::Now() + absl::Seconds(1)));
  return status;
}

}  // namespace bfio::worker
