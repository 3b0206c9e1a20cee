// A PJRT plugin whose transfers of parameters fail as it is told, over the plugin whose path is in
// FAILING_OVER.
//
// A transfer adds a line to the file `transfers` in the directory FAILING_DIRECTORY, and waits
// while the file `hold` is there. If `crash` is there it removes the file and ends the process, and
// if `fail` is there it fails. The files say it for the second transfer of a tensor and for later
// ones.

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include "xla/pjrt/c/pjrt_c_api.h"

namespace {

const PJRT_Api* over;

std::string PathOf(const char* name) {
  return std::string(std::getenv("FAILING_DIRECTORY")) + "/" + name;
}

bool IsThere(const char* name) { return access(PathOf(name).c_str(), F_OK) == 0; }

// Any error of the plugin below; this one is for arguments without a size.
PJRT_Error* Error() {
  PJRT_AsyncHostToDeviceTransferManager_TransferData_Args none{};
  return over->PJRT_AsyncHostToDeviceTransferManager_TransferData(&none);
}

PJRT_Error* TransferData(PJRT_AsyncHostToDeviceTransferManager_TransferData_Args* args) {
  if (args->offset > 0) {
    std::ofstream(PathOf("transfers"), std::ios::app) << args->transfer_size << std::endl;
    while (IsThere("hold")) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (unlink(PathOf("crash").c_str()) == 0) std::abort();
    if (IsThere("fail")) return Error();
  }
  return over->PJRT_AsyncHostToDeviceTransferManager_TransferData(args);
}

}  // namespace

extern "C" const PJRT_Api* GetPjrtApi() {
  static const PJRT_Api table = [] {
    void* const library = dlopen(std::getenv("FAILING_OVER"), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) std::abort();
    over = reinterpret_cast<const PJRT_Api* (*)()>(dlsym(library, "GetPjrtApi"))();
    PJRT_Api copy{};
    std::memcpy(&copy, over, std::min(over->struct_size, sizeof(copy)));
    copy.struct_size = std::min(over->struct_size, sizeof(copy));
    copy.PJRT_AsyncHostToDeviceTransferManager_TransferData = TransferData;
    return copy;
  }();
  return &table;
}
