/* The usual case of what every step of training comes by, for steps that follow each other fast.

   After some milliseconds of arithmetic nothing of Python is left in the processor's caches, and a function of a
   dozen lines takes as long as one of a thousand would otherwise. Each shortcut here stands before a function of
   rhythm.py or finite.py, does what that one does where all is as usual, and calls it wherever it is not. Those
   functions say what is to be done, and do it alone where this file was not compiled.

   All runs under the GIL; nothing is built for interpreters without one. */

#include "beat.h"
#include "frames.h"
#include "stages.h"

#include <pthread.h>

#define MOST_VALUES 65536 /* of a tensor that is read here */

static PyObject *BATCH, *BATCH_NAMES, *EMPTY, *INPUT, *NUM_WORKERS, *NUM_YIELDED;

#define PARTS 6

/* A function that stands before another one. Never freed while a job runs, and in no cycle that would need it. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Beat *beat;
    PyObject *usual, *parts[PARTS], *names;
} Shortcut;

static void shortcut_dealloc(Shortcut *shortcut) {
    Py_XDECREF(shortcut->beat);
    Py_XDECREF(shortcut->usual);
    for (int at = 0; at < PARTS; at++) {
        Py_XDECREF(shortcut->parts[at]);
    }
    Py_XDECREF(shortcut->names);
    PyObject_Free(shortcut);
}

/* As a function in a class is bound to the instance. */
static PyObject *shortcut_bind(PyObject *shortcut, PyObject *instance, PyObject *type) {
    if (instance == NULL || instance == Py_None) {
        Py_INCREF(shortcut);
        return shortcut;
    }
    return PyMethod_New(shortcut, instance);
}

static PyGetSetDef shortcut_properties[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL},
};

static PyTypeObject ShortcutType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "rankscope.probe._quick.Shortcut",
    .tp_basicsize = sizeof(Shortcut),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_vectorcall_offset = offsetof(Shortcut, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_dealloc = (destructor)shortcut_dealloc,
    .tp_descr_get = shortcut_bind,
    .tp_getset = shortcut_properties,
    .tp_dictoffset = offsetof(Shortcut, names),
};

/* Calls one of ours while an exception of the program is on its way; whatever ours raises is dropped. */
static void call_aside(PyObject *function, PyObject *first, PyObject *second) {
    PyObject *type, *value, *traceback, *result = NULL;
    PyErr_Fetch(&type, &value, &traceback);
    if (first != NULL && second != NULL) {
        result = PyObject_CallFunctionObjArgs(function, first, second, NULL);
    }
    if (result == NULL) {
        PyErr_Clear();
    }
    Py_XDECREF(result);
    Py_XDECREF(first);
    Py_XDECREF(second);
    PyErr_Restore(type, value, traceback);
}

static long long attribute_number(PyObject *object, PyObject *name) {
    PyObject *value = PyObject_GetAttr(object, name);
    long long number = value != NULL && PyLong_CheckExact(value) ? PyLong_AsLongLong(value) : -1;
    Py_XDECREF(value);
    PyErr_Clear();
    return number;
}

/* Batches: `__next__` of a loader's iterator. */

enum { ADVANCE, EXHAUSTED, FED, APPEND };

static PyObject *references(PyObject *const *tensors, Py_ssize_t count) {
    PyObject *found = PyTuple_New(count);
    for (Py_ssize_t at = 0; found != NULL && at < count; at++) {
        PyObject *reference = PyWeakref_NewRef(tensors[at], NULL);
        if (reference == NULL) {
            Py_CLEAR(found);
        } else {
            PyTuple_SET_ITEM(found, at, reference);
        }
    }
    return found;
}

static void note_batch(Shortcut *shortcut, PyObject *batch) {
    Beat *beat = shortcut->beat;
    PyObject *names = BATCH, *found = NULL, *entry = NULL, *result = NULL;
    if (Py_TYPE(batch) == beat->tensor) {
        names = BATCH_NAMES;
        found = references(&batch, 1);
    } else if (PyList_CheckExact(batch) || PyTuple_CheckExact(batch)) {
        Py_ssize_t count = PySequence_Fast_GET_SIZE(batch);
        found = references(PySequence_Fast_ITEMS(batch), count < beat->most_tensors ? count : beat->most_tensors);
        PyErr_Clear(); /* not all are tensors */
    }
    if (found == NULL) {
        result = PyObject_CallFunctionObjArgs(shortcut->parts[FED], BATCH, batch, NULL);
    } else {
        entry = Py_BuildValue("KOO", (unsigned long long)beat->words[beat->counters + STEPS], names, found);
        result = entry == NULL ? NULL : PyObject_CallOneArg(shortcut->parts[APPEND], entry);
    }
    Py_XDECREF(entry);
    Py_XDECREF(found);
    Py_XDECREF(result);
    PyErr_Clear();
}

static PyObject *next_batch(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *keywords) {
    Shortcut *shortcut = (Shortcut *)self;
    Beat *beat = shortcut->beat;
    long long yielded, workers;
    if (beat->full || beat->words == NULL || PyVectorcall_NARGS(nargsf) != 1 || keywords != NULL ||
        beat->loader != (uintptr_t)args[0] || (yielded = attribute_number(args[0], NUM_YIELDED)) <= 0 ||
        (workers = attribute_number(args[0], NUM_WORKERS)) < 0) {
        return PyObject_Vectorcall(shortcut->usual, args, nargsf, keywords);
    }
    uint64_t *words = beat->words, *loader = words + beat->loader_word, since = now_ns();
    loader[LOADER_TIME] = words[beat->counters + CHANGED] = since;
    loader[LOADER_BATCHES] = (uint64_t)yielded;
    loader[LOADER_NUMBER] = (uint64_t)beat->loader_number | (uint64_t)workers << 32;
    loader[LOADER_STATE] = (uint64_t)beat->loader_site | beat->waiting;
    PyObject *batch = PyObject_Vectorcall(shortcut->parts[ADVANCE], args, nargsf, NULL);
    if (batch == NULL) {
        if (PyErr_ExceptionMatches(PyExc_StopIteration)) {
            Py_INCREF(args[0]);
            call_aside(shortcut->parts[EXHAUSTED], args[0], PyLong_FromLongLong(yielded));
        }
        return NULL;
    }
    uint64_t now = now_ns();
    words = beat->words; /* the process may have forked meanwhile, and moved to another page */
    loader = words + beat->loader_word;
    loader[LOADER_TIME] = words[beat->counters + CHANGED] = now;
    words[beat->counters + BATCHES]++;
    loader[LOADER_BATCHES] = (uint64_t)yielded + 1;
    loader[LOADER_STATE] = (uint64_t)beat->loader_site | beat->gave;
    beat->data_ns += (long long)(now - since);
    note_batch(shortcut, batch);
    return batch;
}

static PyObject *arguments(PyObject *const *args, Py_ssize_t count) {
    PyObject *given = PyTuple_New(count);
    for (Py_ssize_t at = 0; given != NULL && at < count; at++) {
        Py_INCREF(args[at]);
        PyTuple_SET_ITEM(given, at, args[at]);
    }
    return given;
}

/* Forward passes: `_pre_forward` of a replicated model. */

enum { ORIGINAL, NOTE };

static PyObject *before_forward(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *keywords) {
    Shortcut *shortcut = (Shortcut *)self;
    Beat *beat = shortcut->beat;
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    PyObject *inputs, *found, *entry, *result = NULL;
    if (beat->full || beat->words == NULL || count == 0 || (keywords != NULL && PyTuple_GET_SIZE(keywords) > 0) ||
        (found = references(args + 1, count - 1)) == NULL) {
        PyErr_Clear(); /* not all are tensors */
        return PyObject_Vectorcall(shortcut->usual, args, nargsf, keywords);
    }
    entry = Py_BuildValue("KON", (unsigned long long)beat->words[beat->counters + STEPS], INPUT, found);
    result = entry == NULL ? NULL : PyObject_CallOneArg(shortcut->parts[NOTE], entry);
    inputs = arguments(args + 1, count - 1);
    if (inputs != NULL) {
        replace(&beat->inputs, inputs);
    }
    PyErr_Clear();
    Py_XDECREF(entry);
    Py_XDECREF(result);
    Py_XDECREF(inputs);
    return PyObject_Vectorcall(shortcut->parts[ORIGINAL], args, nargsf, keywords);
}

/* Backward passes. */

enum { FUNCTION, DONE, FAILED, NEXT_CALL, DEPTHS, NAME };

/* Whether the pass comes from the line that the last one came from. */
static int same_place(Beat *beat) {
    PyFrameObject *frame = PyEval_GetFrame(), *outer;
    if (frame == NULL || beat->code == NULL || beat->code == Py_None) {
        return 0;
    }
    Py_INCREF(frame);
    for (long above = beat->above; above > 0 && frame != NULL; above--) {
        outer = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = outer;
    }
    if (frame == NULL) {
        return 0;
    }
    outer = PyFrame_GetBack(frame);
    int same = is_at(frame, beat->code, beat->lasti) &&
               (outer == NULL ? beat->outer_code == Py_None : is_at(outer, beat->outer_code, beat->outer_lasti));
    Py_DECREF(frame);
    Py_XDECREF(outer);
    return same;
}

static int set_depth(PyObject *depths, PyObject *thread, long depth) {
    PyObject *number = PyLong_FromLong(depth);
    int failed = number == NULL || PyDict_SetItem(depths, thread, number) < 0;
    Py_XDECREF(number);
    return failed ? -1 : 0;
}

/* The system's number of this thread. Asking the system takes longer than all else here; a child made by fork asks anew,
   as its thread has another number. */
static unsigned long FORKS;
static __thread unsigned long THREAD, THREAD_FORKS;

static void count_forks(void) {
    FORKS++;
}

static unsigned long thread_number(void) {
    if (THREAD == 0 || THREAD_FORKS != FORKS) {
        THREAD = PyThread_get_thread_native_id();
        THREAD_FORKS = FORKS;
    }
    return THREAD;
}

/* In how many recorded calls the thread is before this one; -1 where that cannot be told. */
static long enter(PyObject *depths, PyObject *thread) {
    PyObject *known = PyDict_GetItemWithError(depths, thread);
    long depth = known == NULL ? 0 : PyLong_AsLong(known);
    return PyErr_Occurred() || set_depth(depths, thread, depth + 1) < 0 ? -1 : depth;
}

static uint64_t *record_pass(Shortcut *shortcut, uint64_t index, uint64_t thread, long depth) {
    Beat *beat = shortcut->beat;
    uint64_t *counters = beat->words + beat->counters, now = now_ns();
    uint64_t *call = beat->words + beat->ring + (Py_ssize_t)(index % (uint64_t)beat->slots) * beat->call_words;
    call[0] = now;
    call[1] = call[2] = 0;
    call[3] = counters[STEPS];
    call[4] = PyLong_AsUnsignedLongLong(shortcut->parts[NAME]);
    call[5] = beat->site | thread << 32;
    call[6] = UINT64_MAX; /* no peer */
    call[7] = UINT32_MAX; /* no tensor */
    call[8] = (uint64_t)depth << 32;
    counters[CALLS] = index + 1;
    counters[CHANGED] = now;
    return call;
}

static PyObject *backward(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *keywords) {
    Shortcut *shortcut = (Shortcut *)self;
    Beat *beat = shortcut->beat;
    PyObject *given, *thread, *number = NULL, *result;
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    if (beat->full || beat->words == NULL || beat->losses != Py_None || count == 0 || !same_place(beat)) {
        return PyObject_Vectorcall(shortcut->usual, args, nargsf, keywords);
    }
    unsigned long native = thread_number();
    long depth = -1;
    given = arguments(args, count);
    thread = PyLong_FromUnsignedLong(native);
    if (given == NULL || thread == NULL || (depth = enter(shortcut->parts[DEPTHS], thread)) < 0 ||
        (number = PyIter_Next(shortcut->parts[NEXT_CALL])) == NULL) {
        PyErr_Clear(); /* no memory for a number: the program is to be told that by its own next one */
        Py_XDECREF(given);
        Py_XDECREF(thread);
        return PyObject_Vectorcall(shortcut->parts[FUNCTION], args, nargsf, keywords);
    }
    uint64_t index = PyLong_AsUnsignedLongLong(number), *map = beat->words;
    uint64_t *call = record_pass(shortcut, index, native, depth);
    replace(&beat->losses, given);
    result = PyObject_Vectorcall(shortcut->parts[FUNCTION], args, nargsf, keywords);
    if (result == NULL) {
        call_aside(shortcut->parts[FAILED], number, thread);
        Py_DECREF(given);
        return NULL;
    }
    uint64_t *counters = beat->words + beat->counters;
    uint64_t now = counters[CHANGED] = now_ns();
    if (map == beat->words && counters[CALLS] - index < (uint64_t)beat->slots) {
        call[1] = now;
    }
    if (set_depth(shortcut->parts[DEPTHS], thread, depth) < 0) {
        PyErr_Clear();
    }
    if (beat->full || beat->losses == given) {
        PyObject *done = PyObject_CallOneArg(shortcut->parts[DONE], given);
        if (done == NULL) {
            PyErr_Clear();
        }
        Py_XDECREF(done);
    }
    Py_DECREF(given);
    Py_DECREF(thread);
    Py_DECREF(number);
    return result;
}

/* The rank's own gradient, together with the loss. */

static int all_finite(const char *values, Py_ssize_t count, int kind) {
    /* Not finite: all bits of the exponent are set. The loops have no way out before their end: they are vectors. */
    int bad = 0;
    if (kind == 0) {
        const uint32_t *bits = (const uint32_t *)values;
        for (Py_ssize_t at = 0; at < count; at++) {
            bad |= (bits[at] & 0x7f800000u) == 0x7f800000u;
        }
    } else if (kind == 1) {
        const uint64_t *bits = (const uint64_t *)values;
        for (Py_ssize_t at = 0; at < count; at++) {
            bad |= (bits[at] & 0x7ff0000000000000u) == 0x7ff0000000000000u;
        }
    } else {
        const uint16_t *bits = (const uint16_t *)values, exponent = kind == 2 ? 0x7f80 : 0x7c00;
        for (Py_ssize_t at = 0; at < count; at++) {
            bad |= (bits[at] & exponent) == exponent;
        }
    }
    return !bad;
}

/* By the descriptor, as the type has it: no table of the type's is searched for the name, none need be in the caches. */
static PyObject *ask(Beat *beat, PyObject *tensor, int question) {
    PyObject *descriptor = beat->questions[question];
    if (Py_IS_TYPE(descriptor, &PyGetSetDescr_Type)) {
        PyGetSetDef *attribute = ((PyGetSetDescrObject *)descriptor)->d_getset;
        return attribute->get(tensor, attribute->closure);
    }
    if (Py_IS_TYPE(descriptor, &PyMethodDescr_Type)) {
        PyMethodDef *method = ((PyMethodDescrObject *)descriptor)->d_method;
        if (method->ml_flags == METH_NOARGS) {
            return method->ml_meth(tensor, NULL);
        }
    }
    if (PyCallable_Check(descriptor)) {
        return PyObject_Vectorcall(descriptor, &tensor, 1, NULL);
    }
    return NULL; /* a property in Python: another torch than those known */
}

static int is_true(PyObject *value) {
    Py_XDECREF(value); /* True lives on */
    return value == Py_True;
}

static unsigned long long whole_number(PyObject *value) {
    unsigned long long number = value != NULL && PyLong_CheckExact(value) ? PyLong_AsUnsignedLongLong(value) : 0;
    Py_XDECREF(value);
    return number;
}

/* Whether these are numbers that can be read from here, all of them finite. */
static int is_finite(Beat *beat, PyObject *tensor) {
    int kind = 0, finite = 0;
    if (beat->tensor == NULL || Py_TYPE(tensor) != beat->tensor) {
        return 0;
    }
    PyObject *dtype = ask(beat, tensor, DTYPE);
    while (kind < KINDS && beat->kinds[kind] != dtype) {
        kind++;
    }
    if (dtype != NULL && kind < KINDS && is_true(ask(beat, tensor, IS_CPU)) &&
        is_true(ask(beat, tensor, IS_CONTIGUOUS))) {
        unsigned long long count = whole_number(ask(beat, tensor, NUMEL));
        if (count > 0 && count <= MOST_VALUES) {
            const char *values = (const char *)(uintptr_t)whole_number(ask(beat, tensor, DATA_PTR));
            finite = values != NULL && all_finite(values, (Py_ssize_t)count, kind);
        }
    }
    Py_XDECREF(dtype);
    PyErr_Clear(); /* whatever cannot be read is looked at by others */
    return finite;
}

static PyObject *own_gradient(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *keywords) {
    Shortcut *shortcut = (Shortcut *)self;
    Beat *beat = shortcut->beat;
    PyObject *given = beat->losses;
    int usual = 0;
    if (!beat->full && given != Py_None && PyVectorcall_NARGS(nargsf) == 1 && PyTuple_CheckExact(args[0]) &&
        PyTuple_GET_SIZE(args[0]) > 0 && PyTuple_CheckExact(given) && PyTuple_GET_SIZE(given) > 0) {
        PyObject *losses = PyTuple_GET_ITEM(given, 0);
        Py_INCREF(given);
        usual = PyTuple_CheckExact(losses) && PyTuple_GET_SIZE(losses) == 1 &&
                is_finite(beat, PyTuple_GET_ITEM(args[0], 0)) && is_finite(beat, PyTuple_GET_ITEM(losses, 0)) &&
                given == beat->losses;
        Py_DECREF(given);
    }
    if (!usual) {
        return PyObject_Vectorcall(shortcut->usual, args, nargsf, keywords);
    }
    replace(&beat->losses, Py_None);
    replace(&beat->inputs, EMPTY);
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

static PyObject *make(PyObject *args, vectorcallfunc call, Py_ssize_t parts) {
    if (PyTuple_GET_SIZE(args) != parts + 2 || !PyObject_TypeCheck(PyTuple_GET_ITEM(args, 0), &BeatType)) {
        PyErr_Format(PyExc_TypeError, "takes a beat, the usual function and %zd parts", parts);
        return NULL;
    }
    Shortcut *made = PyObject_New(Shortcut, &ShortcutType);
    if (made == NULL) {
        return NULL;
    }
    made->vectorcall = call;
    made->names = NULL;
    made->beat = (Beat *)PyTuple_GET_ITEM(args, 0);
    made->usual = PyTuple_GET_ITEM(args, 1);
    Py_INCREF(made->beat);
    Py_INCREF(made->usual);
    for (Py_ssize_t at = 0; at < PARTS; at++) {
        made->parts[at] = at < parts ? PyTuple_GET_ITEM(args, at + 2) : NULL;
        Py_XINCREF(made->parts[at]);
    }
    return (PyObject *)made;
}

static PyObject *make_next_batch(PyObject *module, PyObject *args) {
    return make(args, next_batch, APPEND + 1);
}

static PyObject *make_before_forward(PyObject *module, PyObject *args) {
    return make(args, before_forward, NOTE + 1);
}

static PyObject *make_backward(PyObject *module, PyObject *args) {
    return make(args, backward, NAME + 1);
}

static PyObject *make_own_gradient(PyObject *module, PyObject *args) {
    return make(args, own_gradient, 0);
}

static PyObject *make_step_begins(PyObject *module, PyObject *args) {
    return make(args, step_begins, 0);
}

static PyObject *make_step_done(PyObject *module, PyObject *args) {
    return make(args, step_done, 0);
}

static PyMethodDef functions[] = {
    {"next_batch", make_next_batch, METH_VARARGS, NULL},
    {"before_forward", make_before_forward, METH_VARARGS, NULL},
    {"backward", make_backward, METH_VARARGS, NULL},
    {"own_gradient", make_own_gradient, METH_VARARGS, NULL},
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
        {&INPUT, "input"},
        {&NO_KIND, ""},
        {&NUM_WORKERS, "_num_workers"},
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
    if ((EMPTY = PyTuple_New(0)) == NULL || (BATCH_NAMES = PyTuple_Pack(1, BATCH)) == NULL ||
        (ZERO = PyLong_FromLong(0)) == NULL || PyType_Ready(&ShortcutType) < 0) {
        return NULL;
    }
    struct {
        const char *name;
        PyTypeObject *type;
    } types[] = {{"Beat", &BeatType}, {"Ledger", &LedgerType}, {"Stage", &StageType}};
    PyObject *module = PyModule_Create(&definition);
    for (size_t at = 0; module != NULL && at < sizeof(types) / sizeof(types[0]); at++) {
        if (PyType_Ready(types[at].type) < 0 ||
            PyModule_AddObject(module, types[at].name, Py_NewRef((PyObject *)types[at].type)) < 0) {
            Py_CLEAR(module);
        }
    }
    return module;
}
