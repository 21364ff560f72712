// This version reads what earlier ones wrote (tests/compatibility): their protocol, settings, decision logs
// and messages.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/message.h>

#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "bfio/v1/admin.pb.h"
#include "bfio/v1/engine_steps.pb.h"
#include "tests/testing/cluster.h"
#include "tests/testing/scripted_worker.h"

namespace bfio::testing {
namespace {

namespace pb = ::google::protobuf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// What an older protocol has and this one has not, or otherwise.
class Differences {
 public:
  explicit Differences(const pb::FileDescriptorSet& files) {
    for (const pb::FileDescriptorProto& file : files.file()) {
      const pb::FileDescriptor* const built = old_.BuildFile(file);
      if (built == nullptr) Add(file.name(), "cannot be built");
      if (built != nullptr && built->package() == "bfio.v1") Compare(*built);
    }
  }
  const std::vector<std::string>& found() const { return found_; }

 private:
  void Add(const std::string& where, const std::string& what) {
    found_.push_back(absl::StrCat(where, ": ", what));
  }

  void Compare(const pb::FileDescriptor& file) {
    for (int i = 0; i < file.message_type_count(); ++i) Compare(*file.message_type(i));
    for (int i = 0; i < file.enum_type_count(); ++i) Compare(*file.enum_type(i));
    for (int i = 0; i < file.service_count(); ++i) {
      for (int m = 0; m < file.service(i)->method_count(); ++m) Compare(*file.service(i)->method(m));
    }
  }

  void Compare(const pb::Descriptor& then) {
    for (int i = 0; i < then.nested_type_count(); ++i) Compare(*then.nested_type(i));
    for (int i = 0; i < then.enum_type_count(); ++i) Compare(*then.enum_type(i));
    const pb::Descriptor* const now = now_.FindMessageTypeByName(then.full_name());
    if (now == nullptr) return Add(then.full_name(), "gone");
    for (int i = 0; i < then.field_count(); ++i) {
      const pb::FieldDescriptor& field = *then.field(i);
      const pb::FieldDescriptor* const same = now->FindFieldByNumber(field.number());
      if (same == nullptr) {
        if (!now->IsReservedNumber(field.number()))
          Add(field.full_name(), "gone and its number not reserved");
      } else if (Sign(field) != Sign(*same)) {
        Add(field.full_name(), absl::StrCat(Sign(field), " became ", Sign(*same)));
      }
    }
  }

  void Compare(const pb::EnumDescriptor& then) {
    const pb::EnumDescriptor* const now = now_.FindEnumTypeByName(then.full_name());
    if (now == nullptr) return Add(then.full_name(), "gone");
    for (int i = 0; i < then.value_count(); ++i) {
      const pb::EnumValueDescriptor* const same = now->FindValueByNumber(then.value(i)->number());
      if (same == nullptr ? !now->IsReservedNumber(then.value(i)->number())
                          : same->name() != then.value(i)->name())
        Add(then.value(i)->full_name(), "its number has another meaning");
    }
  }

  void Compare(const pb::MethodDescriptor& then) {
    const pb::MethodDescriptor* const now = now_.FindMethodByName(then.full_name());
    if (now == nullptr) return Add(then.full_name(), "gone");
    if (now->DebugString() != then.DebugString()) Add(then.full_name(), "other messages");
  }

  // What the wire and generated code know of a field.
  static std::string Sign(const pb::FieldDescriptor& field) {
    return absl::StrCat(field.name(), " ", field.is_repeated() ? "repeated " : "",
                        field.has_presence() ? "optional " : "", field.type_name(), " ",
                        field.message_type() != nullptr ? field.message_type()->full_name() : "",
                        field.enum_type() != nullptr ? field.enum_type()->full_name() : "");
  }

  pb::DescriptorPool old_;
  // REQUIRES: a message of each file is linked.
  const pb::DescriptorPool& now_ = *v1::ClusterState::descriptor()->file()->pool();
  std::vector<std::string> found_;
};

std::vector<std::string> Versions() {
  std::vector<std::string> folders;
  for (const auto& entry : std::filesystem::directory_iterator("tests/compatibility"))
    if (entry.is_directory()) folders.push_back(entry.path().string());
  return folders;
}

pb::FileDescriptorSet Protos(const std::string& folder) {
  pb::FileDescriptorSet files;
  EXPECT_TRUE(files.ParseFromString(ReadFile(folder + "/protos")));
  return files;
}

TEST(Compatibility, NoFieldOfTheProtocolChanges) {
  ASSERT_EQ(v1::EngineHello::descriptor()->file()->pool(), v1::ClusterState::descriptor()->file()->pool());
  ASSERT_FALSE(Versions().empty());
  for (const std::string& folder : Versions())
    EXPECT_THAT(Differences(Protos(folder)).found(), IsEmpty()) << folder;
}

TEST(Compatibility, SettingsAreAccepted) {
  for (const std::string& folder : Versions()) {
    for (const char* file : {"router", "router_sglang"}) {
      // Its engines do not answer, which is the check's answer: 1. A wrong setting is 2.
      const RunResult router = RunProgram(
          "bfio_router", {absl::StrCat("--config=", folder, "/", file, ".yaml"), "--check_config"});
      EXPECT_EQ(router.code, 1) << folder << router.err;
      EXPECT_THAT(router.out, HasSubstr("faults")) << folder;
    }
    const RunResult worker = RunProgram("bfio_worker", {absl::StrCat("--config=", folder, "/worker.yaml"),
                                                        "--router=127.0.0.1:1", "--connect_timeout=10ms"});
    EXPECT_EQ(worker.code, 1) << folder << worker.err;
  }
}

TEST(Compatibility, DecisionLogsAreReplayed) {
  for (const std::string& folder : Versions()) {
    const RunResult run = RunProgram("bfio_sim", {"replay", absl::StrCat("--log=", folder, "/decisions")});
    // A later version may decide otherwise.
    EXPECT_TRUE(run.code == 0 || absl::StrContains(run.err, "the replayed decisions differ")) << run.err;
  }
}

// The messages of a stored session: those that clients and workers sent, and those that they received.
struct Stored {
  std::string method;
  bool sent = false;
  std::string bytes;
};
std::vector<Stored> Messages(const std::string& folder) {
  std::vector<Stored> messages;
  std::istringstream lines(ReadFile(folder + "/streams"));
  for (std::string method, sign, text; lines >> method >> sign >> text;) {
    Stored stored = {.method = method.substr(1), .sent = sign == ">"};
    EXPECT_TRUE(absl::Base64Unescape(text, &stored.bytes)) << folder;
    messages.push_back(std::move(stored));
  }
  EXPECT_FALSE(messages.empty()) << folder;
  return messages;
}

TEST(Compatibility, NothingInAMessageIsUnknown) {
  const pb::DescriptorPool& pool = *v1::ClusterState::descriptor()->file()->pool();
  for (const std::string& folder : Versions()) {
    for (const Stored& stored : Messages(folder)) {
      const pb::MethodDescriptor* const method =
          pool.FindMethodByName(absl::StrReplaceAll(stored.method, {{"/", "."}}));
      ASSERT_NE(method, nullptr) << stored.method;
      const std::unique_ptr<pb::Message> message(
          pb::MessageFactory::generated_factory()
              ->GetPrototype(stored.sent ? method->input_type() : method->output_type())
              ->New());
      ASSERT_TRUE(message->ParseFromString(stored.bytes)) << stored.method;
      message->DiscardUnknownFields();
      EXPECT_EQ(message->ByteSizeLong(), stored.bytes.size()) << stored.method << message->DebugString();
    }
  }
}

TEST(Compatibility, ClientsAndWorkersAreServed) {
  Cluster cluster({.worker_processes = 1});
  ASSERT_TRUE(cluster.ok());
  for (const std::string& folder : Versions()) {
    int requests = 0;
    ScriptedWorker worker(cluster.address(), "");
    for (const Stored& stored : Messages(folder)) {
      if (!stored.sent) continue;
      v1::GenerateRequest request;
      v1::WorkerMessage message;
      if (stored.method == "bfio.v1.Inference/Generate" && request.ParseFromString(stored.bytes)) {
        const GenerateResult result = RequestStream(cluster.inference(), request).End();
        EXPECT_TRUE(result.status.ok()) << folder << result.status.error_message();
        EXPECT_EQ(result.tokens.size(), request.max_new_tokens()) << folder;
        ++requests;
      } else if (message.ParseFromString(stored.bytes) && message.has_hello()) {
        worker.hello() = message.hello();
      }
    }
    EXPECT_GT(requests, 0) << folder;
    EXPECT_NE(worker.hello().worker_id(), "") << folder;
    worker.hello().set_worker_id(folder);
    EXPECT_TRUE(worker.Join()) << folder;
  }
}

}  // namespace
}  // namespace bfio::testing
