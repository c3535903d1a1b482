# What `cmake --install` installs, cbk.deb (cpack) and the programs of the relocatable tarball (scripts/packaging/tarball.sh).
include(GNUInstallDirs)
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)  # a package does not need the tests
set(CMAKE_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

install(TARGETS cbk)
install(TARGETS cbk-hdf5 DESTINATION ${CMAKE_INSTALL_LIBEXECDIR}/cbk)
install(DIRECTORY scripts converters DESTINATION ${CMAKE_INSTALL_DATADIR}/cbk PATTERN packaging EXCLUDE PATTERN python EXCLUDE)
install(FILES .luarc.json DESTINATION ${CMAKE_INSTALL_DATADIR}/cbk)  # editors find the annotations beside it
install(FILES README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES scripts/packaging/copyright DESTINATION ${CMAKE_INSTALL_DOCDIR})

install(FILES scripts/packaging/completions/cbk.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME cbk)
install(FILES scripts/packaging/completions/cbk.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
# zsh looks into site-functions of /usr/local, and into vendor-completions of /usr on Debian.
install(CODE "set(zsh site-functions)
  if(CMAKE_INSTALL_PREFIX MATCHES \"/usr$\")
    set(zsh vendor-completions)
  endif()
  file(INSTALL \"${CMAKE_SOURCE_DIR}/scripts/packaging/completions/_cbk\" DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/zsh/\${zsh}\")")

# Man pages and the changelog, compressed without names and times.
set(GENERATED ${CMAKE_BINARY_DIR}/generated)
install(CODE "file(REMOVE_RECURSE \"${GENERATED}\")
  file(MAKE_DIRECTORY \"${GENERATED}/doc\")
  execute_process(COMMAND \"$<TARGET_FILE:cbk>\" run \"${CMAKE_SOURCE_DIR}/scripts/packaging/man.lua\" \"${GENERATED}/man\" COMMAND_ERROR_IS_FATAL ANY)
  file(COPY \"${CMAKE_SOURCE_DIR}/scripts/packaging/changelog\" DESTINATION \"${GENERATED}/doc\")
  file(GLOB pages \"${GENERATED}/man/*\" \"${GENERATED}/doc/*\")
  execute_process(COMMAND gzip -9n \${pages} COMMAND_ERROR_IS_FATAL ANY)
  foreach(section 1 7)
    file(GLOB pages \"${GENERATED}/man/*.\${section}.gz\")
    file(INSTALL \${pages} DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_MANDIR}/man\${section}\")
  endforeach()
  file(INSTALL \"${GENERATED}/doc/changelog.gz\" DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DOCDIR}\")")

# The modules for MPI, in a package of their own: nothing else depends on MPI.
foreach(implementation openmpi mpich)
  if(TARGET cbk-${implementation})
    install(TARGETS cbk-${implementation} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBEXECDIR}/cbk COMPONENT mpi)
  endif()
endforeach()
install(FILES scripts/packaging/copyright DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/cbk-mpi COMPONENT mpi)
install(CODE "file(INSTALL \"${GENERATED}/doc/changelog.gz\" DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/doc/cbk-mpi\")"
  COMPONENT mpi)

# The module for Python, in a package of its own: nothing else depends on Python.
install(DIRECTORY scripts/python/cbk DESTINATION lib/python3/dist-packages COMPONENT python PATTERN __pycache__ EXCLUDE)
install(FILES scripts/packaging/copyright DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/python3-cbk COMPONENT python)
install(CODE "file(INSTALL \"${GENERATED}/doc/changelog.gz\" DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/doc/python3-cbk\")"
  COMPONENT python)

# --- cbk.deb, python3-cbk.deb, and cbk-mpi.deb where there is an MPI
set(CPACK_GENERATOR DEB)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL Unspecified python)
if(TARGET cbk-openmpi OR TARGET cbk-mpich)
  list(APPEND CPACK_COMPONENTS_ALL mpi)
endif()
set(CPACK_DEBIAN_UNSPECIFIED_PACKAGE_NAME cbk)
set(CPACK_DEBIAN_MPI_PACKAGE_NAME cbk-mpi)
set(CPACK_DEBIAN_PYTHON_PACKAGE_NAME python3-cbk)
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/package)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
# Who builds the package answers for it: DEBFULLNAME and DEBEMAIL, as Debian's tools have them. Without these there is no address,
# and the domain says so (RFC 2606).
set(CPACK_PACKAGE_CONTACT "The developers of cbk <noreply@cbk.invalid>")
if(DEFINED ENV{DEBEMAIL})
  set(CPACK_PACKAGE_CONTACT "$ENV{DEBFULLNAME} <$ENV{DEBEMAIL}>")
endif()
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "workbench for checkpoints of deep-learning models")
set(CPACK_DEBIAN_UNSPECIFIED_DESCRIPTION "Opens Cerebras H5, PyTorch, safetensors and TensorFlow checkpoints of any
size as one lazy tree, and converts between Hugging Face and Cerebras Model
Zoo layouts. All of it can be scripted in Lua. A pickle is read as data:
nothing in it is executed.")
set(CPACK_DEBIAN_MPI_DESCRIPTION "This is the module for MPI: with it,
\`mpirun cbk\` shares the work of one command among the
processes that MPI starts: each writes a part of the same output.")
set(CPACK_DEBIAN_PYTHON_DESCRIPTION "This is the module for Python: it runs cbk, and gives the tensors of any
checkpoint as NumPy arrays, lazily and by slices.")
set(CPACK_DEBIAN_UNSPECIFIED_FILE_NAME cbk.deb)
set(CPACK_DEBIAN_MPI_FILE_NAME cbk-mpi.deb)
set(CPACK_DEBIAN_PYTHON_FILE_NAME python3-cbk.deb)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# Besides those that are linked: what is loaded when it is needed (SharedLibrary).
set(CPACK_DEBIAN_UNSPECIFIED_PACKAGE_DEPENDS "lua-argparse, libdnnl2, libgomp1, libssl3")
set(CPACK_DEBIAN_UNSPECIFIED_PACKAGE_SUGGESTS "cbk-mpi, python3-cbk, hdf5-filter-plugin-blosc-serial")
set(CPACK_DEBIAN_MPI_PACKAGE_DEPENDS "cbk (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS "cbk (= ${PROJECT_VERSION}), python3, python3-numpy")
set(CPACK_DEBIAN_PYTHON_PACKAGE_SECTION python)
set(CPACK_DEBIAN_PYTHON_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_PYTHON_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_PYTHON_PACKAGE_CONTROL_EXTRA ${CMAKE_SOURCE_DIR}/scripts/packaging/python3-cbk/prerm)
include(CPack)

# --- the tarball's programs: the same objects. What Debian has as an archive is linked in; the rest is copied beside them.
add_executable(cbk-portable EXCLUDE_FROM_ALL $<TARGET_OBJECTS:cbk>)
target_link_options(cbk-portable PRIVATE -s -Wl,--export-dynamic-symbol=lua_* -Wl,--export-dynamic-symbol=luaL_*)
target_link_libraries(cbk-portable PRIVATE $<TARGET_FILE:cbk_bindings> $<TARGET_FILE:cbk_host> $<TARGET_FILE:cbk_bundle_messages> $<TARGET_FILE:blake3>
  -Wl,-Bstatic -lluajit-5.1 -lyaml-cpp -ldeflate -llz4 -lzstd -lz -lprotobuf -lleveldb -lsnappy -ledit -lbsd -lmd -ltinfo -lseccomp
  -Wl,-Bdynamic -lfmt -lisal -lhwy)
set_target_properties(cbk-portable PROPERTIES LINKER_LANGUAGE CXX BUILD_RPATH $ORIGIN/../lib/cbk)
add_dependencies(cbk-portable cbk)
add_executable(cbk-hdf5-portable EXCLUDE_FROM_ALL $<TARGET_OBJECTS:cbk-hdf5>)
target_link_options(cbk-hdf5-portable PRIVATE -s -static-libstdc++ -static-libgcc)
target_link_libraries(cbk-hdf5-portable PRIVATE -Wl,-Bstatic ${HDF5_LIBRARY_DIRS}/libhdf5.a -lsz -laec -lz -lseccomp -Wl,-Bdynamic)
set_target_properties(cbk-hdf5-portable PROPERTIES LINKER_LANGUAGE CXX)
