# find_package(bfio) gives the target bfio::client: #include "tools/client/client.h".
include(CMakeFindDependencyMacro)
find_dependency(gRPC)
find_dependency(spdlog)
find_dependency(absl)
get_filename_component(BFIO_LIB "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
if(NOT TARGET bfio::client)
  add_library(bfio::client STATIC IMPORTED)
  set_target_properties(bfio::client PROPERTIES
    IMPORTED_LOCATION "${BFIO_LIB}/libbfio_client.a"
    INTERFACE_INCLUDE_DIRECTORIES "${BFIO_LIB}/../../include/bfio-client"
    INTERFACE_COMPILE_FEATURES cxx_std_20
    INTERFACE_LINK_LIBRARIES "gRPC::grpc++;protobuf::libprotobuf;spdlog::spdlog;absl::synchronization;absl::statusor;absl::strings;absl::time")
endif()
