#include "router/requests/request_table.h"

#include <gtest/gtest.h>

#include "common/base/clock.h"

namespace bfio::router {
namespace {

v1::GenerateRequest Named(const std::string& name) {
  v1::GenerateRequest request;
  request.set_request_id(name);
  return request;
}

TEST(RequestTable, NoRequestTakesAnothersPlace) {
  RequestTable table;
  RequestRecord* const first = table.Add(7, Named("first"), nullptr, MonotonicNow());
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(table.Add(8, Named("first"), nullptr, MonotonicNow()), nullptr) << "its name is taken";
  EXPECT_EQ(table.Add(7, Named("second"), nullptr, MonotonicNow()), nullptr) << "its number is taken";
  EXPECT_EQ(table.size(), 1u);
  EXPECT_EQ(table.Find(7), first);
  EXPECT_EQ(table.Find(8), nullptr);
  EXPECT_EQ(table.FindByName("second"), nullptr);
  table.Erase(7);
  EXPECT_NE(table.Add(7, Named("second"), nullptr, MonotonicNow()), nullptr);
  EXPECT_NE(table.Add(8, Named("first"), nullptr, MonotonicNow()), nullptr);
}

}  // namespace
}  // namespace bfio::router
