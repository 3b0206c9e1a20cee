# Installs what a wheel carries beside the module: jemalloc, which the launcher preloads, the software bill of
# materials, which `millpond --version` reads, and the pages of `millpond help`. Included by native/CMakeLists.txt.
find_library(MILLPOND_JEMALLOC libjemalloc.so.2)
if(NOT MILLPOND_JEMALLOC)
  message(FATAL_ERROR "libjemalloc.so.2 is not installed: apt-get install libjemalloc2")
endif()
file(REAL_PATH ${MILLPOND_JEMALLOC} jemalloc_file)
install(PROGRAMS ${jemalloc_file} DESTINATION serving/data_plane RENAME libjemalloc.so.2)

# Only scikit-build-core has a place for it.
if(SKBUILD_METADATA_DIR)
  set(bill_of_materials ${CMAKE_BINARY_DIR}/millpond.cdx.json)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "from serving.base.tensorflow_package import installed_version; print(installed_version())"
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
    OUTPUT_VARIABLE tensorflow_version OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  execute_process(
    COMMAND ${Python_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/write_bill_of_materials.py
            --version ${MILLPOND_VERSION} --tensorflow ${tensorflow_version} --jemalloc ${jemalloc_file}
            --include ${nanobind_ROOT}/../include ${nanobind_ROOT}/../ext/robin_map/include
                      ${MILLPOND_TENSORFLOW_DIR}/include ${CMAKE_SYSTEM_INCLUDE_PATH}
                      /usr/local/include /usr/include /usr/share/include /usr/include/${CMAKE_LIBRARY_ARCHITECTURE}
            -- ${bill_of_materials}
    COMMAND_ERROR_IS_FATAL ANY)
  install(FILES ${bill_of_materials} DESTINATION ${SKBUILD_METADATA_DIR}/sboms)
endif()

# The pages of `millpond help`. An editable installation reads them where they are.
if(SKBUILD_STATE STREQUAL "wheel")
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/docs/ DESTINATION serving/docs OPTIONAL
          FILES_MATCHING PATTERN "*.md" PATTERN images EXCLUDE)
endif()
