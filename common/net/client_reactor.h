// A client's reactor that survives a server that breaks off within its headers: gRPC 1.51 would abort the
// process, when it looks whether the call has trailers only. So OnReadInitialMetadataDone says nothing of
// that. Threads: as `Reactor`, a reactor of grpc for clients.
#pragma once

#include <grpcpp/grpcpp.h>

namespace bfio {

template <typename Reactor>
class ClientReactor : public Reactor {
 private:
  bool InternalTrailersOnly(const grpc_call*) const final { return false; }
};

}  // namespace bfio
