// Requests that survive faults, compared with the same requests without faults.
//
// Purpose: clients that resume when their streams break, and the check that each receives, once and in order,
// the tokens of a run without faults. Threads: one; each client has its own.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/cluster.h"
#include "tests/testing/resuming_client.h"

namespace bfio::testing {

// Every third request has prompt token ids; every fourth has no seed.
inline v1::GenerateRequest ResumableRequest(int i, uint32_t output) {
  v1::GenerateRequest request = SyntheticRequest(10 + i, output);
  if (i % 3 == 0) {
    for (int t = 0; t < 10 + i; ++t) request.mutable_token_ids()->add_ids(t * 7 + i);
  }
  if (i % 4 != 0) request.mutable_sampling()->set_seed(100 + i);
  request.set_request_id(absl::StrCat("r", i));
  request.set_resume_token("secret");
  request.set_resumable(true);
  return request;
}

using Clients = std::vector<std::unique_ptr<ResumingClient>>;

inline Clients StartClients(const std::string& address, int count, uint32_t output) {
  Clients clients;
  for (int i = 0; i < count; ++i)
    clients.push_back(std::make_unique<ResumingClient>(address, ResumableRequest(i, output)));
  return clients;
}

inline void WaitForTokens(Clients& clients, size_t tokens) {
  ASSERT_TRUE(Eventually([&] {
    return std::all_of(clients.begin(), clients.end(),
                       [&](const auto& client) { return client->tokens_seen() >= tokens; });
  }));
}

// The tokens that the sim engine generates for these requests without faults.
inline std::vector<std::vector<uint32_t>> Undisturbed(int count, uint32_t output) {
  ClusterOptions options;
  options.worker_processes = 1;
  options.worker_flags = {"--c=0.0005", "--tl=0", "--slots=64"};
  Cluster cluster(options);
  std::vector<std::vector<uint32_t>> tokens;
  Clients clients = StartClients(cluster.address(), count, output);
  for (auto& client : clients) tokens.push_back(client->Join().tokens);
  return tokens;
}

inline void ExpectUndisturbed(Clients& clients, uint32_t output) {
  const auto wanted = Undisturbed(static_cast<int>(clients.size()), output);
  for (size_t i = 0; i < clients.size(); ++i) {
    const GenerateResult& result = clients[i]->Join();
    EXPECT_TRUE(result.status.ok()) << i << ": " << result.status.error_message();
    EXPECT_TRUE(result.contiguous) << i;
    EXPECT_EQ(result.finishes, 1) << i;
    EXPECT_EQ(result.tokens, wanted[i]) << i;
    EXPECT_EQ(result.tokens.size(), output) << i;
  }
}

}  // namespace bfio::testing
