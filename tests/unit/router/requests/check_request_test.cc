#include "router/requests/check_request.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>

namespace bfio::router {
namespace {

absl::Status Check(const ClientRequest& request) {
  return CheckRequest(request, RequestLimits());
}

TEST(CheckRequest, AcceptsValuesAtTheirLimits) {
  ClientRequest request = {.request_id = std::string(128, 'x'), .tenant = std::string(128, 'x')};
  request.prompt_tokens = 131072;
  request.max_new_tokens = 65536;
  request.priority = -100;
  request.stop_token_ids.resize(64);
  request.parent_id = std::string(128, 'p');
  request.stage = 1 << 20;
  request.remaining_tokens = 1 << 24;
  request.parent_timeout = absl::Hours(24);
  for (const absl::Duration objective : {absl::Hours(1), absl::Nanoseconds(1)}) {
    request.ttft_objective = objective;
    EXPECT_TRUE(Check(request).ok());
  }
  request = {.prompt_tokens = 10, .max_new_tokens = 5, .resume_from = 2, .received = {1, 2}};
  EXPECT_TRUE(Check(request).ok());
  request = {.resume_from = 7};
  EXPECT_TRUE(IsBareResume(request));
  EXPECT_TRUE(Check(request).ok());
}

TEST(CheckRequest, NamesFieldValueAndLimit) {
  using Change = std::function<void(ClientRequest&)>;
  const std::string long_name(129, 'x');
  const struct {
    Change change;
    const char* message;
  } cases[] = {
      {[](auto& r) { r.max_new_tokens = 65537; }, "max_new_tokens is 65537; must be within 1..65536"},
      {[&](auto& r) { r.request_id = long_name; }, "request_id's length is 129; must be at most 128 bytes"},
      {[&](auto& r) { r.tenant = long_name; }, "tenant's length is 129; must be at most 128 bytes"},
      {[&](auto& r) { r.parent_id = long_name; }, "parent_id's length is 129; must be at most 128 bytes"},
      {[&](auto& r) { r.resume_from = 0, r.resume_token = long_name; },
       "resume_token's length is 129; must be at most 128 bytes"},
      {[](auto& r) { r.prompt_tokens = 131073; }, "prompt_length is 131073; must be within 1..131072"},
      {[](auto& r) { r.prompt_tokens = 131073, r.prompt.resize(131073); },
       "the number of token_ids is 131073; must be within 1..131072"},
      {[](auto& r) { r.stop_token_ids.resize(65); },
       "the number of stop_token_ids is 65; must be at most 64"},
      {[](auto& r) { r.predicted_output_tokens = 0; },
       "predicted_output_tokens is 0; must be at least 1, or unset"},
      {[](auto& r) { r.sampling.top_k = 0; }, "sampling.top_k is 0; must be at least 1"},
      {[](auto& r) { r.sampling.temperature = std::nanf(""); }, ""},
      {[](auto& r) { r.sampling.top_p = std::nanf(""); }, ""},
      {[](auto& r) { r.priority = INT32_MIN; }, ""},
      {[](auto& r) { r.parent_id = "p", r.stage = (1 << 20) + 1; },
       "stage is 1048577; must be at most 1048576"},
      {[](auto& r) { r.parent_id = "p", r.remaining_tokens = (1 << 24) + 1; },
       "remaining_tokens is 16777217; must be at most 16777216"},
      {[](auto& r) { r.stage = 0; }, "stage, remaining_tokens and parent_timeout need parent_id"},
      {[](auto& r) { r.parent_timeout = absl::Hours(1); },
       "stage, remaining_tokens and parent_timeout need parent_id"},
      {[](auto& r) { r.parent_id = "p", r.parent_timeout = absl::Hours(24) + absl::Seconds(1); },
       "parent_timeout is 24h1s; must be above 0 and at most 24 h"},
      {[](auto& r) { r.ttft_objective = absl::Hours(1) + absl::Nanoseconds(1); },
       "ttft_objective is 1h0.000000001s; must be above 0 and at most 1 h"},
      {[](auto& r) { r.ttft_objective = absl::ZeroDuration(); },
       "ttft_objective is 0; must be above 0 and at most 1 h"},
      {[](auto& r) { r = {.resume_from = 65537}; }, "resume_from_index is 65537; must be at most 65536"},
      {[](auto& r) { r = {.resume_from = 0, .received = {1}}; },
       "received_token_ids needs resume_from_index and a prompt"},
      {[](auto& r) { r.resume_from = 2, r.received = {1}; },
       "the number of received_token_ids is 1; must be within resume_from_index..max_new_tokens, 2..5"},
      {[](auto& r) { r.resume_from = 6; }, "resume_from_index is 6; must be at most max_new_tokens, 5"},
  };
  for (const auto& one : cases) {
    ClientRequest request = {.prompt_tokens = 10, .max_new_tokens = 5};
    EXPECT_TRUE(Check(request).ok());
    one.change(request);
    const absl::Status status = Check(request);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << one.message;
    if (one.message[0] != '\0') {
      EXPECT_EQ(status.message(), one.message);
    }
  }
}

}  // namespace
}  // namespace bfio::router
