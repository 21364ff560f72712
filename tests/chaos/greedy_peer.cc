#include "tests/chaos/greedy_peer.h"

#include <grpcpp/generic/generic_stub.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bfio/v1/inference.pb.h"
#include "common/base/rng.h"
#include "common/net/awaited_call.h"
#include "engines/vllm.pb.h"
#include "tests/chaos/client_load.h"

namespace bfio::chaos {
namespace {

// More open calls than any bound of the router's for one peer.
constexpr size_t kMostCalls = 2000;
constexpr absl::Duration kHabitPause = absl::Milliseconds(20);

grpc::ByteBuffer BytesOf(const google::protobuf::MessageLite& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return {&slice, 1};
}

vllm::grpc::engine::GenerateRequest WholeOutput() {
  vllm::grpc::engine::GenerateRequest request;
  request.mutable_tokenized()->add_input_ids(7);
  request.mutable_sampling_params()->set_max_tokens(64);
  request.mutable_sampling_params()->set_ignore_eos(true);
  return request;
}

// Resumed, with a ticket that the router has not signed.
v1::GenerateRequest BadResume() {
  v1::GenerateRequest request;
  request.mutable_token_ids()->add_ids(7);
  request.set_max_new_tokens(4);
  request.set_resumable(true);
  request.set_request_id("resumed");
  request.set_resume_token("secret");
  request.set_resume_ticket(std::string(64, 't'));
  request.set_resume_from_index(1);
  return request;
}

}  // namespace

// What it does with a call of `method`.
struct GreedyPeer::Habit {
  const char* method;
  // Begun in a round.
  int calls;
  // Absent: only headers are sent.
  std::optional<grpc::ByteBuffer> request;
  bool at_worker_port = false;
  // Cancelled at once, instead of being left open and unread.
  bool cancelled = false;
};

class GreedyPeer::Call final
    : public AwaitedCall<grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>> {
 public:
  Call(const std::shared_ptr<grpc::Channel>& channel, const Habit& habit) : stub_(channel) {
    if (!habit.at_worker_port)
      context_.AddMetadata("authorization", absl::StrCat("Bearer ", TokenOf(kGreedyTenant)));
    stub_.PrepareBidiStreamingCall(&context_, habit.method, grpc::StubOptions(), this);
    GrpcHandOver(this);
    if (habit.request) {
      request_ = *habit.request;
      StartWriteLast(&request_, grpc::WriteOptions());
    }
    StartCall();
    if (habit.cancelled) context_.TryCancel();
  }
  ~Call() override { End(); }

 private:
  grpc::GenericStub stub_;
  grpc::ByteBuffer request_;
};

GreedyPeer::GreedyPeer(Options options) : options_(std::move(options)) {
  // A channel of its own each, although a program's channels to one address share their connections.
  grpc::ChannelArguments own;
  own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  client_ = grpc::CreateCustomChannel(options_.client, grpc::InsecureChannelCredentials(), own);
  worker_ = grpc::CreateCustomChannel(options_.worker, grpc::InsecureChannelCredentials(), own);
  thread_ = std::thread([this] { Run(); });
}

GreedyPeer::~GreedyPeer() {
  stop_ = true;
  thread_.join();
}

void GreedyPeer::Run() {
  const grpc::ByteBuffer nothing = BytesOf(v1::GenerateRequest());
  const Habit habits[] = {
      {"/bfio.v1.Inference/Generate", 40, std::nullopt},
      {"/vllm.grpc.engine.VllmEngine/Generate", 40, std::nullopt},
      {"/bfio.v1.WorkerLink/Attach", 20, std::nullopt, /*at_worker_port=*/true},
      {"/vllm.grpc.engine.VllmEngine/GetTokenizer", 40, nothing},
      {"/vllm.grpc.engine.VllmEngine/SubscribeKvEvents", 20, nothing},
      {"/grpc.health.v1.Health/Watch", 20, nothing},
      {"/vllm.grpc.engine.VllmEngine/Generate", 2, BytesOf(WholeOutput())},
      {"/bfio.v1.Inference/Generate", 10, BytesOf(BadResume())},
      {"/bfio.v1.Inference/Generate", 200, std::nullopt, false, /*cancelled=*/true},
  };
  Rng rng(options_.seed);
  while (!stop_) {
    Begin(habits[rng.Below(std::size(habits))]);
    absl::SleepFor(kHabitPause);
  }
  open_.clear();
}

void GreedyPeer::Begin(const Habit& habit) {
  for (int i = 0; i < habit.calls; ++i) {
    auto call = std::make_unique<Call>(habit.at_worker_port ? worker_ : client_, habit);
    ++calls_;
    if (!habit.cancelled) open_.push_back(std::move(call));
  }
  while (open_.size() > kMostCalls) open_.pop_front();
}

}  // namespace bfio::chaos
