// A real etcd with one member on loopback, as a child process.
//
// Purpose: tests elections with the etcd that users run (Debian: etcd-server). Threads: one.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "router/election/etcd.h"
#include "tests/testing/process.h"
#include "tests/testing/sockets.h"

namespace bfio::testing {

class EtcdServer {
 public:
  // The reason why etcd cannot be started; empty if it can.
  static std::string WhyNot() {
    return std::filesystem::exists(kProgram) ? "" : "etcd is not installed (etcd-server)";
  }

  // `certs`: a folder of deploy/make_certs; empty: plain text. REQUIRES: WhyNot() is empty.
  explicit EtcdServer(std::string certs = "") : certs_(std::move(certs)) { Start(); }

  // Starts etcd on its ports, with the data stored before.
  void Start() {
    const std::string clients = endpoint(), peers = absl::StrCat("http://", peer_port_.address());
    std::vector<std::string> flags = {absl::StrCat("--data-dir=", TestDirectory(), "/etcd", port_.address()),
                                      absl::StrCat("--listen-client-urls=", clients),
                                      absl::StrCat("--advertise-client-urls=", clients),
                                      absl::StrCat("--listen-peer-urls=", peers),
                                      absl::StrCat("--initial-advertise-peer-urls=", peers),
                                      absl::StrCat("--initial-cluster=default=", peers),
                                      "--unsafe-no-fsync"};
    if (!certs_.empty()) {
      flags.push_back(absl::StrCat("--cert-file=", certs_, "/admin-server.crt"));
      flags.push_back(absl::StrCat("--key-file=", certs_, "/admin-server.key"));
    }
    process_ = std::make_unique<Process>(kProgram, flags);
    EXPECT_TRUE(Eventually([this] { return Answers(); })) << process_->Stderr();
  }
  // HOST:PORT, and the same as a URL.
  const std::string& address() const { return port_.address(); }
  std::string endpoint() const { return absl::StrCat(certs_.empty() ? "http://" : "https://", address()); }

 private:
  static constexpr char kProgram[] = "/usr/bin/etcd";

  bool Answers() {
    router::EtcdOptions options;
    options.endpoints = {endpoint()};
    if (!certs_.empty()) options.tls.ca = certs_ + "/admin-ca.crt";
    const auto etcd = router::Etcd::Create(options);
    return etcd.ok() && (*etcd)->Read("x").ok();
  }

  const std::string certs_;
  const HeldPort port_, peer_port_;
  std::unique_ptr<Process> process_;
};

}  // namespace bfio::testing
