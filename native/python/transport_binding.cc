#include <nanobind/stl/map.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "native/python/binding.h"
#include "native/rpc/certificates.h"
#include "native/rpc/reflection_service.h"

namespace millpond::python {
namespace {

namespace nb = nanobind;
using rpc::Certificates;
using rpc::ReflectionTable;
using rpc::ServerCertificates;

std::shared_ptr<ServerCertificates> MakeCertificates(std::string key, std::string chain,
                                                     std::string client_ca,
                                                     bool is_client_required) {
  Certificates certificates = {std::move(key), std::move(chain), std::move(client_ca)};
  return std::make_shared<ServerCertificates>(std::move(certificates), is_client_required);
}

std::shared_ptr<ReflectionTable> MakeTable(
    nb::bytes services, const std::map<std::string, nb::bytes>& files,
    std::map<std::string, std::string> symbols,
    std::map<std::string, ReflectionTable::FileOfNumber> extensions) {
  auto table = std::make_shared<ReflectionTable>();
  table->services.assign(services.c_str(), services.size());
  for (const auto& [name, response] : files) {
    table->files.emplace(name, std::string(response.c_str(), response.size()));
  }
  table->symbols = std::move(symbols);
  table->extensions = std::move(extensions);
  return table;
}

}  // namespace

void RegisterTransport(nb::module_& module) {
  nb::class_<ServerCertificates>(module, "ServerCertificates", nb::is_final())
      .def(nb::new_(&MakeCertificates), nb::kw_only(), nb::arg("key"), nb::arg("chain"),
           nb::arg("client_ca"), nb::arg("is_client_required"))
      .def(
          "replace",
          [](ServerCertificates& self, std::string key, std::string chain, std::string client_ca) {
            self.Replace({std::move(key), std::move(chain), std::move(client_ca)});
          },
          nb::kw_only(), nb::arg("key"), nb::arg("chain"), nb::arg("client_ca"));
  nb::class_<ReflectionTable>(module, "ReflectionTable", nb::is_final())
      .def(nb::new_(&MakeTable), nb::kw_only(), nb::arg("services"), nb::arg("files"),
           nb::arg("symbols"), nb::arg("extensions"));
}

}  // namespace millpond::python
