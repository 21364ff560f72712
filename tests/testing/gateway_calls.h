// Calls of engines' APIs in the way that a gateway makes them.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/net/status.h"
#include "tests/testing/engine_protocols.h"
#include "tests/testing/process.h"

namespace bfio::testing {

using Tokens = std::vector<uint32_t>;

// A directory with a tokenizer that writes token 17 as "<17>".
inline std::string NumbersTokenizer() {
  const std::string folder = TestDirectory() + "/numbers";
  if (RunProgram("/bin/mkdir", {"-p", folder}).code != 0) ADD_FAILURE() << folder;
  std::ofstream out(folder + "/tokenizer.json");
  out << R"({"model":{"vocab":{)";
  for (int id = 0; id < 32'000; ++id) out << (id > 0 ? "," : "") << "\"<" << id << ">\":" << id;
  out << R"(}},"decoder":{"type":"ByteLevel"}})";
  return folder;
}

// Sends arbitrary bytes to any method, with a bearer token if there is one. Returns the response messages and
// the status.
inline std::pair<std::vector<std::string>, grpc::Status> RawCall(
    const std::shared_ptr<grpc::Channel>& channel, const std::string& method, const std::string& bytes,
    int messages_at_most = 1 << 20, grpc_compression_algorithm compression = GRPC_COMPRESS_NONE,
    const std::string& token = "") {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_compression_algorithm(compression);
  if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(&context, method, &queue);
  const auto next = [&] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  call->StartCall(nullptr);
  next();
  grpc::Slice slice(bytes);
  call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
  next();
  std::vector<std::string> messages;
  for (;;) {
    grpc::ByteBuffer buffer;
    call->Read(&buffer, nullptr);
    if (!next()) break;
    grpc::Slice whole;
    EXPECT_TRUE(buffer.DumpToSingleSlice(&whole).ok());
    messages.emplace_back(reinterpret_cast<const char*>(whole.begin()), whole.size());
    if (static_cast<int>(messages.size()) >= messages_at_most) context.TryCancel();
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  next();
  return {messages, status};
}

// The outputs of a call, assembled from its messages as a gateway does it.
template <typename P>
struct OutputsOf {
  using Response = typename P::GenerateResponse;
  using Complete = std::remove_cvref_t<decltype(std::declval<Response>().complete())>;
  using Logprobs = std::remove_cvref_t<decltype(std::declval<Complete>().output_logprobs())>;

  grpc::Status status;
  std::map<uint32_t, Tokens> tokens;
  std::map<uint32_t, Complete> ends;
  // Log-probabilities of the tokens, if requested.
  std::map<uint32_t, Logprobs> logprobs;
  // Outputs for which chunks have arrived.
  std::set<uint32_t> streamed;

  void Add(const Response& response) {
    if (response.has_chunk()) {
      EXPECT_EQ(ends.count(response.chunk().index()), 0u) << "nothing follows an output's end";
      streamed.insert(response.chunk().index());
      Append(response.chunk().token_ids(), tokens[response.chunk().index()]);
      Append(response.chunk());
    } else {
      EXPECT_TRUE(response.has_complete());
      // For a streamed output the completion repeats the last chunk, so its tokens are not added again.
      const bool whole =
          response.complete().output_ids_size() > 0 && !streamed.contains(response.complete().index());
      if (whole) {
        Append(response.complete().output_ids(), tokens[response.complete().index()]);
        Append(response.complete());
      }
      EXPECT_TRUE(!whole || response.complete().index() == ends.size()) << "whole outputs come in order";
      EXPECT_TRUE(ends.emplace(response.complete().index(), response.complete()).second);
    }
  }
  std::string reason(uint32_t index = 0) const {
    const auto it = ends.find(index);
    return it == ends.end() ? "no end" : it->second.finish_reason();
  }

 private:
  template <typename Message>
  void Append(const Message& message) {
    if (message.has_output_logprobs()) logprobs[message.index()].MergeFrom(message.output_logprobs());
  }
  template <typename Ids>
  static void Append(const Ids& ids, Tokens& to) {
    to.insert(to.end(), ids.begin(), ids.end());
  }
};

// Repeats a recorded session of SMG (SGLang's model gateway). Lines are "METHOD STATUS BYTES" with the
// request in hexadecimal; '#' begins a comment. Checks that each call ends with STATUS and its outputs are
// complete. Returns the number of calls.
template <typename P>
int ReplaySession(const std::shared_ptr<grpc::Channel>& channel, const std::string& session) {
  const std::string service = absl::StrCat("/", P::kService, "/");
  std::ifstream in(absl::StrCat("tests/integration/smg_sessions/", session, ".txt"));
  EXPECT_TRUE(in.good()) << session;
  int calls = 0;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    const std::string bytes = words.size() > 2 ? absl::HexStringToBytes(words[2]) : "";
    const bool endless = words[0] == service + "SubscribeKvEvents";
    const auto [messages, status] = RawCall(channel, words[0], bytes, endless ? 1 : 1 << 20);
    ++calls;
    EXPECT_EQ(absl::StatusCodeToString(FromGrpcStatus(status).code()), words.at(1))
        << session << ": " << words[0] << ": " << status.error_message();
    if (words[0] != service + "Generate" || !status.ok()) continue;
    typename P::GenerateRequest request;
    EXPECT_TRUE(request.ParseFromString(bytes));
    OutputsOf<P> outputs;
    for (const std::string& message : messages) {
      typename P::GenerateResponse response;
      EXPECT_TRUE(response.ParseFromString(message));
      if constexpr (requires { response.request_id(); }) {
        EXPECT_EQ(response.request_id(), request.request_id());
      }
      outputs.Add(response);
    }
    EXPECT_EQ(outputs.ends.size(), request.sampling_params().n()) << line;
    for (const auto& [index, end] : outputs.ends) {
      EXPECT_EQ(end.completion_tokens(), outputs.tokens.at(index).size());
      EXPECT_LE(end.completion_tokens(), P::MaxTokens(request.sampling_params()));
    }
  }
  return calls;
}

template <typename P>
class CallOf {
 public:
  CallOf(typename P::Service::Stub& stub, const typename P::GenerateRequest& request,
         absl::Duration deadline = absl::InfiniteDuration(),
         const std::map<std::string, std::string>& metadata = {}) {
    for (const auto& [key, value] : metadata) context_.AddMetadata(key, value);
    if (deadline < absl::InfiniteDuration())
      context_.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(deadline));
    reader_ = stub.Generate(&context_, request);
  }
  ~CallOf() {
    context_.TryCancel();
    if (!ended_) End();
  }

  bool Read() {
    typename P::GenerateResponse response;
    if (!reader_->Read(&response)) return false;
    outputs_.Add(response);
    return true;
  }
  const OutputsOf<P>& End() {
    while (Read()) {
    }
    if (!std::exchange(ended_, true)) outputs_.status = reader_->Finish();
    return outputs_;
  }
  void Cancel() { context_.TryCancel(); }
  const OutputsOf<P>& outputs() const { return outputs_; }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<typename P::GenerateResponse>> reader_;
  OutputsOf<P> outputs_;
  bool ended_ = false;
};

// A request for seven tokens' continuation, which is greedy.
template <typename P>
typename P::GenerateRequest GreedyRequest(uint32_t output, bool stream = true) {
  auto request = P::Plain({1, 2, 3, 4, 5, 6, 7});
  P::SetMaxTokens(*request.mutable_sampling_params(), output);
  request.mutable_sampling_params()->set_ignore_eos(true);
  request.set_stream(stream);
  return request;
}

template <typename P>
std::unique_ptr<typename P::Service::Stub> StubOf(const std::string& address) {
  return P::Service::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
}

template <typename P>
OutputsOf<P> GenerateAs(typename P::Service::Stub& stub, const typename P::GenerateRequest& request) {
  return CallOf<P>(stub, request, absl::Seconds(60)).End();
}

}  // namespace bfio::testing
