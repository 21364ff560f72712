#include "tests/chaos/greedy_peer.h"

#include <grpcpp/generic/generic_stub.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bfio/v1/admin.grpc.pb.h"
#include "bfio/v1/inference.grpc.pb.h"
#include "bfio/v1/worker.grpc.pb.h"
#include "common/net/awaited_call.h"
#include "engines/vllm.pb.h"
#include "envoy/ext_proc.grpc.pb.h"
#include "tests/chaos/client_load.h"
#include "tests/testing/http_engine.h"
#include "tests/testing/sockets.h"
#include "tests/unit/router/frontend/endpoint_picker/ext_proc_messages.h"

namespace bfio::chaos {
namespace {

namespace ext_proc = envoy::service::ext_proc::v3;
using Messages = std::vector<grpc::ByteBuffer>;

// More open calls, and connections, than any bound of the router's for one peer.
constexpr size_t kMostCalls = 2000, kMostConnections = 400;
constexpr absl::Duration kHabitPause = absl::Milliseconds(20);
constexpr char kTenantHeader[] = "x-gateway-inference-fairness-id",
               kProcess[] = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";

grpc::ByteBuffer BytesOf(const google::protobuf::MessageLite& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return {&slice, 1};
}

Messages WholeOutput() {
  vllm::grpc::engine::GenerateRequest request;
  request.mutable_tokenized()->add_input_ids(7);
  request.mutable_sampling_params()->set_max_tokens(64);
  request.mutable_sampling_params()->set_ignore_eos(true);
  return {BytesOf(request)};
}

// Resumed, with a ticket that the router has not signed.
Messages BadResume() {
  v1::GenerateRequest request;
  request.mutable_token_ids()->add_ids(7);
  request.set_max_new_tokens(4);
  request.set_resumable(true);
  request.set_request_id("resumed");
  request.set_resume_token("secret");
  request.set_resume_ticket(std::string(64, 't'));
  request.set_resume_from_index(1);
  return {BytesOf(request)};
}

// An HTTP request whose body has `pieces` of 64 KiB, and an end if `ends`; no rank is long enough for it.
Messages HttpRequest(ext_proc::BodySendMode mode, int pieces, bool ends) {
  Messages messages = {BytesOf(testing::RequestHeaders(
      mode, ext_proc::NONE, {{":path", "/v1/completions"}, {kTenantHeader, kGreedyTenant}}))};
  for (int i = 0; i < pieces; ++i) {
    std::string piece(size_t{64} << 10, 'x');
    if (i == 0) piece.replace(0, 11, R"({"prompt":")");
    if (i + 1 == pieces) piece.replace(piece.size() - 2, 2, R"("})");
    messages.push_back(BytesOf(testing::RequestBody(std::move(piece), ends && i + 1 == pieces)));
  }
  return messages;
}

// A worker of a model of its own that is too short for any request. It sends what the router has not asked
// for.
Messages WorkerMessages(const std::string& id, Rng& rng) {
  v1::WorkerMessage message;
  v1::Hello& hello = *message.mutable_hello();
  hello.set_worker_id(id);
  hello.set_group(id);
  hello.set_model(std::string(64, 'a'));
  hello.set_barrier("star");
  hello.set_communicator_offer("127.0.0.1:1/0");
  hello.set_slots(1 << 16);
  hello.set_kv_tokens(uint64_t{1} << 40);
  hello.set_max_sequence_tokens(1);
  hello.set_steps_alone(true);
  Messages messages = {BytesOf(message)};
  for (int i = 0; i < 16; ++i) {
    const uint64_t epoch = rng.Below(8);
    if (i % 4 == 0) {
      v1::Announcement& announcement = *message.mutable_announcement();
      announcement.set_epoch(epoch);
      for (int r = 0; r < 1000; ++r) {
        v1::HeldRequest& held = *announcement.add_requests();
        held.mutable_assignment()->set_handle(rng.Next());
        for (int t = 0; t < 64; ++t) held.add_token_ids(static_cast<uint32_t>(rng.Next()));
      }
    } else if (i % 4 == 1) {
      message.mutable_epoch_ready()->set_epoch(epoch);
    } else {
      v1::StepReport& report = *message.mutable_step_report();
      report.set_epoch(epoch);
      report.set_step(rng.Next() >> rng.Below(64));
      report.set_load_tokens(rng.Next() >> rng.Below(64));
      report.set_local_ns(rng.Next());
      for (int r = 0; r < 10'000; ++r) report.add_finished()->set_handle(rng.Next());
    }
    messages.push_back(BytesOf(message));
  }
  return messages;
}

// Whether many tenants' calls share the connection.
bool IsShared(Port port) {
  return port == kGatewayPort || port == kEnvoyPort;
}

void Authenticate(Port port, const std::string& tenant, grpc::ClientContext& context) {
  if (port == kWorkerPort || port == kAdminPort || port == kStrangerPort) return;
  context.AddMetadata("authorization", absl::StrCat("Bearer ", TokenOf(IsShared(port) ? kGateway : tenant)));
  if (port == kGatewayPort) context.AddMetadata("bfio-tenant", tenant);
}

// A program's channels to one address share connections, unless they ask for their own.
std::shared_ptr<grpc::Channel> ChannelTo(const std::string& address, Port port) {
  grpc::ChannelArguments args;
  if (!IsShared(port)) args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args);
}

}  // namespace

// What it does with a call of `method`.
struct GreedyPeer::Habit {
  Port port;
  const char* method;
  // Begun in a round.
  int calls;
  // Sent one after another; none: only headers.
  Messages messages;
  // Cancelled at once, instead of being left open and unread.
  bool cancelled = false;
};

class GreedyPeer::Call final
    : public AwaitedCall<grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>> {
 public:
  // `habit` outlives the call.
  Call(const std::shared_ptr<grpc::Channel>& channel, const Habit& habit)
      : messages_(habit.messages), stub_(channel) {
    Authenticate(habit.port, kGreedyTenant, context_);
    stub_.PrepareBidiStreamingCall(&context_, habit.method, grpc::StubOptions(), this);
    OnWriteDone(true);
    StartCall();
    if (habit.cancelled) context_.TryCancel();
  }
  ~Call() override { End(); }

  void OnWriteDone(bool ok) override {
    const GrpcReaction reaction(this);
    if (!ok || sent_ == messages_.size()) return;
    const grpc::ByteBuffer* const next = &messages_[sent_++];
    GrpcHandOver(this);
    messages_.size() == 1 ? StartWriteLast(next, grpc::WriteOptions()) : StartWrite(next);
  }

 private:
  const Messages& messages_;
  size_t sent_ = 0;
  grpc::GenericStub stub_;
};

GreedyPeer::GreedyPeer(Options options) : options_(std::move(options)), rng_(options_.seed) {
  for (const Port port :
       {kClientPort, kGatewayPort, kWorkerPort, kAdminPort, kPickerPort, kEnvoyPort, kStrangerPort}) {
    if (options_.ports[port].empty()) continue;
    if (!IsShared(port))
      proxies_.push_back(std::make_unique<TcpProxy>("127.0.0.1", options_.ports[port], options_.address));
    channels_[port] = ChannelTo(IsShared(port) ? options_.ports[port] : proxies_.back()->address(), port);
  }
  thread_ = std::thread([this] { Run(); });
}

GreedyPeer::~GreedyPeer() {
  stop_ = true;
  thread_.join();
}

std::vector<GreedyPeer::Habit> GreedyPeer::Habits() {
  const Messages nothing = {BytesOf(v1::GenerateRequest())};
  std::vector<Habit> habits;
  for (const Port port : {kClientPort, kGatewayPort}) {
    const Habit some[] = {{port, "/bfio.v1.Inference/Generate", 40, {}},
                          {port, "/vllm.grpc.engine.VllmEngine/Generate", 40, {}},
                          {port, "/vllm.grpc.engine.VllmEngine/GetTokenizer", 40, nothing},
                          {port, "/vllm.grpc.engine.VllmEngine/SubscribeKvEvents", 20, nothing},
                          {port, "/grpc.health.v1.Health/Watch", 20, nothing},
                          {port, "/vllm.grpc.engine.VllmEngine/Generate", 2, WholeOutput()},
                          {port, "/bfio.v1.Inference/Generate", 10, BadResume()},
                          {port, "/bfio.v1.Inference/Generate", 200, {}, /*cancelled=*/true}};
    habits.insert(habits.end(), std::begin(some), std::end(some));
  }
  for (int i = 0; i < 4; ++i) {
    habits.push_back({kWorkerPort, "/bfio.v1.WorkerLink/Attach", 1,
                      WorkerMessages(absl::StrCat("greedy-", options_.seed, "-", i), rng_)});
  }
  habits.push_back({kWorkerPort, "/bfio.v1.WorkerLink/Attach", 20, {}});
  for (const char* method : {"/bfio.v1.Inference/Generate", "/bfio.v1.Inference/GetLoads",
                             "/grpc.health.v1.Health/Watch", "/bfio.v1.WorkerLink/Attach"})
    habits.push_back({kStrangerPort, method, 50, {}});
  habits.push_back({kAdminPort, "/bfio.v1.Admin/GetClusterState", 20, nothing});
  habits.push_back({kAdminPort, "/bfio.v1.Admin/GetClusterState", 40, {}});
  habits.push_back({kAdminPort, "/bfio.v1.Admin/WatchSteps", 20, nothing});
  // Envoy sends the headers of a request with its stream.
  habits.push_back({kPickerPort, kProcess, 40, {}});
  habits.push_back({kPickerPort, kProcess, 200, {}, /*cancelled=*/true});
  for (const Port port : {kPickerPort, kEnvoyPort}) {
    habits.push_back({port, kProcess, 20, HttpRequest(ext_proc::BUFFERED, 0, false)});
    habits.push_back({port, kProcess, 2, HttpRequest(ext_proc::FULL_DUPLEX_STREAMED, 16, false)});
    habits.push_back({port, kProcess, 20, HttpRequest(ext_proc::FULL_DUPLEX_STREAMED, 1, true)});
  }
  std::erase_if(habits, [this](const Habit& habit) { return options_.ports[habit.port].empty(); });
  return habits;
}

void GreedyPeer::Run() {
  const std::vector<Habit> habits = Habits();
  while (!stop_) {
    Begin(habits[rng_.Below(habits.size())]);
    if (!options_.ports[kHttpPort].empty()) Connect(4);
    if (options_.engine != nullptr) Misreport();
    absl::SleepFor(kHabitPause);
  }
  open_.clear();
  for (const int fd : connections_) close(fd);
}

void GreedyPeer::Begin(const Habit& habit) {
  for (int i = 0; i < habit.calls; ++i) {
    auto call = std::make_unique<Call>(channels_[habit.port], habit);
    ++calls_;
    if (!habit.cancelled) open_.push_back(std::move(call));
  }
  while (open_.size() > kMostCalls) open_.pop_front();
}

void GreedyPeer::Connect(int connections) {
  const std::string requests[] = {"", "GET /healthz HTTP/1.1\r\nX: ",
                                  "POST /policy HTTP/1.1\r\nHost: x\r\nContent-Length: 65536\r\n\r\n{",
                                  "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"};
  for (int i = 0; i < connections; ++i) {
    const std::string& request = requests[rng_.Below(std::size(requests))];
    const Port port = request.empty() ? kStrangerPort : kHttpPort;
    const int fd = testing::ConnectTo(options_.ports[port], options_.address);
    if (fd < 0) return;
    ++calls_;
    send(fd, request.data(), request.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    connections_.push_back(fd);
    if (connections_.size() <= kMostConnections) continue;
    close(connections_.front());
    connections_.pop_front();
  }
}

void GreedyPeer::Misreport() {
  const auto number = [&] { return static_cast<int64_t>(rng_.Next() >> rng_.Below(64)); };
  options_.engine->running = number();
  options_.engine->waiting = number();
  options_.engine->generated = number();
  options_.engine->ranks = static_cast<int>(rng_.Below(16));
  options_.engine->healthy = rng_.Below(4) != 0;
}

std::vector<PortProbe> ProbesOf(const Ports& ports) {
  const auto context = [](Port port) {
    auto made = std::make_unique<grpc::ClientContext>();
    made->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    Authenticate(port, TenantName(0), *made);
    return made;
  };
  const auto why = [](const grpc::Status& status) {
    return status.ok() ? "" : absl::StrCat(status.error_code(), ": ", status.error_message());
  };
  std::vector<PortProbe> probes;
  for (const Port port : {kClientPort, kGatewayPort}) {
    const std::shared_ptr<v1::Inference::Stub> stub = v1::Inference::NewStub(ChannelTo(ports[port], port));
    probes.push_back({port == kClientPort ? "client" : "gateway", [=] {
                        v1::GetLoadsResponse loads;
                        return why(stub->GetLoads(context(port).get(), {}, &loads));
                      }});
  }
  const std::shared_ptr<v1::WorkerLink::Stub> worker =
      v1::WorkerLink::NewStub(ChannelTo(ports[kWorkerPort], kWorkerPort));
  probes.push_back({"worker", [=] {
                      const auto call = context(kWorkerPort);
                      const auto stream = worker->Attach(call.get());
                      // No hello: it is read, and refused.
                      stream->Write(v1::WorkerMessage());
                      v1::RouterMessage message;
                      stream->Read(&message);
                      const grpc::Status status = stream->Finish();
                      return status.error_code() == grpc::StatusCode::INVALID_ARGUMENT ? "" : why(status);
                    }});
  const std::shared_ptr<v1::Admin::Stub> admin = v1::Admin::NewStub(ChannelTo(ports[kAdminPort], kAdminPort));
  probes.push_back({"admin", [=] {
                      v1::ClusterState state;
                      return why(admin->GetClusterState(context(kAdminPort).get(), {}, &state));
                    }});
  if (!ports[kEnvoyPort].empty()) {
    const std::shared_ptr<ext_proc::ExternalProcessor::Stub> picker =
        ext_proc::ExternalProcessor::NewStub(ChannelTo(ports[kEnvoyPort], kEnvoyPort));
    probes.push_back({"picker", [=] {
                        const auto call = context(kEnvoyPort);
                        const auto stream = picker->Process(call.get());
                        stream->Write(
                            testing::RequestHeaders(ext_proc::BUFFERED, ext_proc::NONE,
                                                    {{":path", "/v1/x"}, {kTenantHeader, TenantName(0)}}));
                        ext_proc::ProcessingResponse answer;
                        if (!stream->Read(&answer)) return why(stream->Finish());
                        call->TryCancel();
                        return answer.has_request_headers() ? "" : answer.ShortDebugString();
                      }});
  }
  probes.push_back(
      {"http", [http = ports[kHttpPort]] { return testing::HttpGet(http, "/healthz") ? "" : "no answer"; }});
  return probes;
}

}  // namespace bfio::chaos
