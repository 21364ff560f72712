// The router as Envoy's endpoint picker, and the test in the place of Envoy. Headers only; GoogleTest's
// thread.
#pragma once

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "envoy/ext_proc.grpc.pb.h"
#include "tests/testing/bad_input.h"
#include "tests/testing/cluster.h"
#include "tests/testing/http_engine.h"
#include "tests/unit/router/frontend/endpoint_picker/ext_proc_messages.h"

namespace bfio::testing {

constexpr int kSlots = 4;

class PickerTest : public ::testing::Test {
 protected:
  // `roles`: of the first ones; the others have none. `login`: their tls and token_file; empty: plain text.
  // `settings`: more of them.
  static std::string Config(const std::vector<std::string>& addresses,
                            const std::vector<std::string>& roles = {}, const std::string& login = "",
                            const std::vector<std::string>& settings = {}) {
    std::string config = "engines:\n";
    for (size_t i = 0; i < addresses.size(); ++i) {
      absl::StrAppend(&config, "- {url: \"http", login.empty() ? "" : "s", "://", addresses[i],
                      "\", slots: ", kSlots, i < roles.size() ? ", role: " + roles[i] : "",
                      i < settings.size() ? ", " + settings[i] : "", login, "}\n");
    }
    return "--config=" + WriteFile("picker.yaml", config);
  }
  // Without engines, `flags` name one.
  void Serve(const std::vector<const HttpEngine*>& engines, std::vector<std::string> flags = {},
             const std::vector<std::string>& roles = {}, const std::vector<std::string>& settings = {}) {
    ClusterOptions options;
    options.worker_processes = 0;
    options.ranks = std::max<int>(
        1, static_cast<int>(engines.size() - std::count(roles.begin(), roles.end(), "prefill")));
    options.router_flags = std::move(flags);
    options.router_flags.push_back("--picker_listen=" + port_.address());
    std::vector<std::string> addresses;
    for (const HttpEngine* engine : engines) addresses.push_back(engine->address());
    if (!engines.empty()) options.router_flags.push_back(Config(addresses, roles, "", settings));
    cluster_ = std::make_unique<Cluster>(options);
    ASSERT_TRUE(cluster_->ok());
    channel_ = grpc::CreateChannel(port_.address(), grpc::InsecureChannelCredentials());
    stub_ = ext_proc::ExternalProcessor::NewStub(channel_);
  }

  // One HTTP request, as Envoy brings it.
  struct Call {
    Call(ext_proc::ExternalProcessor::Stub& stub, ext_proc::BodySendMode mode,
         const std::string& path = "/v1/chat/completions",
         const std::string& body = R"({"messages":[{"content":"Hello"}],"max_tokens":20})")
        : sent(body), stream(stub.Process(&context)) {
      const bool buffered = mode == ext_proc::BUFFERED;
      stream->Write(RequestHeaders(mode, ext_proc::NONE, {{":path", path}}));
      if (buffered) stream->Read(&answer);
      stream->Write(RequestBody(body, true));
    }
    // Waits for the request's place; empty: it was refused.
    std::string Place() {
      if (!stream->Read(&answer) || answer.has_immediate_response()) return "";
      const auto& common =
          answer.has_request_body() ? answer.request_body().response() : answer.request_headers().response();
      return common.header_mutation().set_headers(0).header().raw_value();
    }
    // The body as Envoy forwards it. REQUIRES: it has a place.
    std::string Forwarded() {
      if (answer.has_request_body()) {
        const auto& response = answer.request_body().response();
        if (!response.has_body_mutation()) return sent;
        for (const auto& option : response.header_mutation().set_headers()) {
          if (option.header().key() != "content-length") continue;
          EXPECT_EQ(option.header().raw_value(), absl::StrCat(response.body_mutation().body().size()));
        }
        return response.body_mutation().body();
      }
      std::string body;
      ext_proc::ProcessingResponse more;
      for (bool ends = false; !ends && stream->Read(&more);) {
        const auto& piece = more.request_body().response().body_mutation().streamed_response();
        body += piece.body();
        ends = piece.end_of_stream();
      }
      return body;
    }
    grpc::Status End(int status = 200, const std::string& details = "via_upstream") {
      ext_proc::ProcessingResponse more;
      stream->Write(ResponseHeaders(status, details));
      stream->WritesDone();
      while (stream->Read(&more)) {
      }
      return stream->Finish();
    }

    const std::string sent;
    grpc::ClientContext context;
    ext_proc::ProcessingResponse answer;
    std::unique_ptr<grpc::ClientReaderWriter<ext_proc::ProcessingRequest, ext_proc::ProcessingResponse>>
        stream;
  };

  const HeldPort port_;
  std::unique_ptr<Cluster> cluster_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<ext_proc::ExternalProcessor::Stub> stub_;
};

}  // namespace bfio::testing
