#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <string>
#include <utility>

#include "native/python/binding.h"
#include "native/rpc/certificates.h"

namespace millpond::python {
namespace {

namespace nb = nanobind;
using rpc::Certificates;
using rpc::ServerCertificates;

std::shared_ptr<ServerCertificates> MakeCertificates(std::string key, std::string chain,
                                                     std::string client_ca,
                                                     bool is_client_required) {
  Certificates certificates = {std::move(key), std::move(chain), std::move(client_ca)};
  return std::make_shared<ServerCertificates>(std::move(certificates), is_client_required);
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
}

}  // namespace millpond::python
