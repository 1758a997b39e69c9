/* The usual case of what every step of training comes by, for steps that follow each other fast.

   After some milliseconds of arithmetic nothing of Python is left in the processor's caches, and a function of a
   dozen lines takes as long as one of a thousand would otherwise. Each shortcut here stands before a function of
   rhythm.py or finite.py, does what that one does where all is as usual, and calls it wherever it is not. Those
   functions say what is to be done, and do it alone where this file was not compiled.

   All runs under the GIL; nothing is built for interpreters without one. */

#include "backward.h"
#include "batches.h"
#include "gradient.h"
#include "stages.h"

/* What a model is called with. */

static PyObject *fed(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *keywords) {
    Shortcut *shortcut = (Shortcut *)self;
    Beat *beat = shortcut->beat;
    if (beat->full || !beat->deferring || PyVectorcall_NARGS(nargsf) != 2 || !PyTuple_CheckExact(args[0]) ||
        !PyDict_CheckExact(args[1]) || PyDict_GET_SIZE(args[1]) > 0 || beat->inputs != EMPTY) {
        return PyObject_Vectorcall(shortcut->usual, args, nargsf, keywords);
    }
    replace(&beat->inputs, args[0]);
    Py_RETURN_NONE;
}

/* Steps of optimizers. */

static PyObject *step_begins(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *keywords) {
    Shortcut *shortcut = (Shortcut *)self;
    if (shortcut->beat->full) {
        return PyObject_Vectorcall(shortcut->usual, args, nargsf, keywords);
    }
    Py_RETURN_NONE;
}

static PyObject *step_done(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *keywords) {
    Shortcut *shortcut = (Shortcut *)self;
    Beat *beat = shortcut->beat;
    if (!beat->full && beat->words != NULL && PyVectorcall_NARGS(nargsf) > 0 &&
        beat->optimizer == (uintptr_t)args[0]) {
        uint64_t *counters = beat->words + beat->counters, now = now_ns(), steps = counters[STEPS] + 1;
        if (now < beat->due && steps % (uint64_t)beat->checksum_every != 0) {
            counters[STEPS] = steps;
            counters[CHANGED] = now;
            Py_RETURN_NONE;
        }
    }
    return PyObject_Vectorcall(shortcut->usual, args, nargsf, keywords);
}

/* The module. */

static PyObject *make_next_batch(PyObject *module, PyObject *args) {
    return make(args, next_batch, FED + 1);
}

static PyObject *make_backward(PyObject *module, PyObject *args) {
    if (PyTuple_GET_SIZE(args) > DEPTHS + 2 && !Py_IS_TYPE(PyTuple_GET_ITEM(args, DEPTHS + 2), &DepthsType)) {
        PyErr_SetString(PyExc_TypeError, "takes the depths of its own kind");
        return NULL;
    }
    return make(args, backward, NAME + 1);
}

static PyObject *make_own_gradient(PyObject *module, PyObject *args) {
    return make(args, own_gradient, 0);
}

static PyObject *make_fed(PyObject *module, PyObject *args) {
    return make(args, fed, 0);
}

static PyObject *make_step_begins(PyObject *module, PyObject *args) {
    return make(args, step_begins, 0);
}

static PyObject *make_step_done(PyObject *module, PyObject *args) {
    return make(args, step_done, 0);
}

static PyMethodDef functions[] = {
    {"next_batch", make_next_batch, METH_VARARGS, NULL},
    {"backward", make_backward, METH_VARARGS, NULL},
    {"own_gradient", make_own_gradient, METH_VARARGS, NULL},
    {"fed", make_fed, METH_VARARGS, NULL},
    {"step_begins", make_step_begins, METH_VARARGS, NULL},
    {"step_done", make_step_done, METH_VARARGS, NULL},
    {"declare_step", declare_step, METH_O, NULL},
    {"serve", serve, METH_VARARGS, NULL},
    {NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "rankscope.probe._quick",
    .m_doc = "Shortcuts for the usual case of what every step comes by.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__quick(void) {
    struct {
        PyObject **name;
        const char *text;
    } names[] = {
        {&BATCH, "batch"},
        {&NO_KIND, ""},
        {&NUM_YIELDED, "_num_yielded"},
    };
    for (size_t at = 0; at < sizeof(names) / sizeof(names[0]); at++) {
        if ((*names[at].name = PyUnicode_InternFromString(names[at].text)) == NULL) {
            return NULL;
        }
    }
    if (pthread_atfork(NULL, NULL, count_forks) != 0) {
        PyErr_SetString(PyExc_ImportError, "no memory");
        return NULL;
    }
    if ((EMPTY = PyTuple_New(0)) == NULL || (ZERO = PyLong_FromLong(0)) == NULL || PyType_Ready(&ShortcutType) < 0) {
        return NULL;
    }
    struct {
        const char *name;
        PyTypeObject *type;
    } types[] = {{"Beat", &BeatType}, {"Depths", &DepthsType}, {"Ledger", &LedgerType}, {"Stage", &StageType}};
    PyObject *module = PyModule_Create(&definition);
    for (size_t at = 0; module != NULL && at < sizeof(types) / sizeof(types[0]); at++) {
        if (PyType_Ready(types[at].type) < 0 ||
            PyModule_AddObject(module, types[at].name, Py_NewRef((PyObject *)types[at].type)) < 0) {
            Py_CLEAR(module);
        }
    }
    return module;
}
